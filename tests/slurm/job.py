"""The script of a job: opens a session on its reservation, adds one and two there, and with an argument keeps the session open."""

import sys
import threading

from tests.support.node import floats, increment
from wooly import config
from wooly.link import Flush
from wooly.session import open_session

session = open_session(config.load(), title="job")
print(session.info.task, flush=True)
session.wait(session.submit(Flush(allocs=((1, 128),))))
for by in (1.0, 2.0):
    session.wait(session.submit(increment(16, by).flush([1])))
if sys.argv[1:]:
    threading.Event().wait()
(data,) = session.wait(session.submit(Flush(reads=((1, 0, 128),))))
print("computed", floats(data)[0], flush=True)
session.close()
