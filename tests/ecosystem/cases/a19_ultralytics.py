"""Ultralytics: a YOLO model's forward pass and predict()."""

# requires: ultralytics
# cpu: no
import os
import sys

os.environ["YOLO_OFFLINE"] = "true"
import numpy as np
import torch
from ultralytics import YOLO

model = YOLO("yolov8n.yaml")
found = model.predict(np.zeros((64, 64, 3), np.uint8), imgsz=64, device=0, verbose=False)
torch.save({"boxes": found[0].boxes.xyxy.cpu()}, sys.argv[1])
