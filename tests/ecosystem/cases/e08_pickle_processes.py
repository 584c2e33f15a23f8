"""A device tensor through a queue to another process, which reads it."""

# cpu: no
# timeout: 240
import sys

import torch
import torch.multiprocessing as mp


def receive(queue, answers):
    answers.put(queue.get().sum().item())


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(queue, answers))
    child.start()
    tensor = torch.ones(4).to(device)
    queue.put(tensor)
    total = answers.get()
    child.join()
    torch.save({"total": total}, sys.argv[1])
