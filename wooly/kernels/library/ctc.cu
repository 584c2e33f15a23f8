// Alignments of targets with sequences, forwards and backwards in time: see wooly/device/ctc.py. A block has one sequence.
// ctc.wis is made of this file by `wooly wis compile ctc.cu`.

template <typename T> __device__ T of_either(T a, T b, T c) {
  const T most = max(a, max(b, c));
  return most == -INFINITY ? most : log(exp(a - most) + exp(b - most) + exp(c - most)) + most;
}

template <typename T> __device__ void forwards(const T *emitted, const bool *skips, T *found, long time, long n) {
  const T none = -INFINITY;
  emitted += blockIdx.x * time * n;
  found += blockIdx.x * time * n;
  skips += blockIdx.x * n;
  for (long s = threadIdx.x; s < n; s += blockDim.x) found[s] = s < 2 ? emitted[s] : none;
  for (long t = 1; t < time; ++t) {
    __syncthreads();
    const T *before = found + (t - 1) * n;
    for (long s = threadIdx.x; s < n; s += blockDim.x)
      found[t * n + s] = of_either(before[s], s ? before[s - 1] : none, skips[s] ? before[s - 2] : none) + emitted[t * n + s];
  }
}

template <typename T>
__device__ void backwards(const T *emitted, const bool *skips, const long *times, const long *last, T *found, long time, long n) {
  const T none = -INFINITY;
  emitted += blockIdx.x * time * n;
  found += blockIdx.x * time * n;
  skips += blockIdx.x * n;
  const long end = times[blockIdx.x] - 1, at_end = last[blockIdx.x];
  for (long t = time - 1; t >= 0; --t) {
    __syncthreads();
    const T *after = found + (t + 1) * n;
    for (long s = threadIdx.x; s < n; s += blockDim.x) {
      T later = t == end && (s == at_end || s == at_end - 1) ? 0 : none;
      if (t < end) later = of_either(after[s], s + 1 < n ? after[s + 1] : none, s + 2 < n && skips[s + 2] ? after[s + 2] : none);
      found[t * n + s] = later + emitted[t * n + s];
    }
  }
}

#define OF_TYPE(T)                                                                                                     \
  extern "C" __global__ void forwards_##T(const T *emitted, const bool *skips, T *found, long time, long n) {          \
    forwards(emitted, skips, found, time, n);                                                                          \
  }                                                                                                                    \
  extern "C" __global__ void backwards_##T(const T *emitted, const bool *skips, const long *times, const long *last,   \
                                           T *found, long time, long n) {                                              \
    backwards(emitted, skips, times, last, found, time, n);                                                            \
  }
OF_TYPE(float)
OF_TYPE(double)
