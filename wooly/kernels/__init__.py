"""User kernels: from CUDA C++ or PTX to modules of the instruction set, and the calls that run them.

``raw`` has the classes that users see, and records their launches, ``nvrtc`` the compiler, ``build`` the path to a verified module.
May live here: what connects another package's way to write kernels to these (``triton``, ``numba``, ``cupy``, ``jiterator``, and C++
extensions: ``extension``, whose sources ``splitting`` divides).
"""
