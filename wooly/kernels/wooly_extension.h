/* Included before every source of a C++ extension with CUDA sources: CUDA's runtime as far as extensions use it, on a remote device.
   Launches and copies go to wooly/kernels/extension.py. torch's devices of type CUDA are called PrivateUse1 here. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <cxxabi.h>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#ifdef WOOLY_BINDINGS
#include <torch/extension.h>
#endif

#define is_cuda is_privateuseone
#define kCUDA kPrivateUse1
#define CUDA PrivateUse1
#define AutogradCUDA AutogradPrivateUse1
#define WITH_CUDA 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __managed__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define C10_LAUNCH_BOUNDS_0
#define C10_LAUNCH_BOUNDS_1(...)
#define C10_LAUNCH_BOUNDS_2(...)
#define CUDART_VERSION CUDA_VERSION
#define __align__(n) alignas(n)
#ifndef __noinline__
#define __noinline__
#endif

#define WOOLY_VECTOR(TYPE, NAME)                                                                       \
  struct NAME##1 { TYPE x; };                                                                          \
  struct alignas(2 * sizeof(TYPE) > 16 ? 16 : 2 * sizeof(TYPE)) NAME##2 { TYPE x, y; };                \
  struct NAME##3 { TYPE x, y, z; };                                                                    \
  struct alignas(4 * sizeof(TYPE) > 16 ? 16 : 4 * sizeof(TYPE)) NAME##4 { TYPE x, y, z, w; };          \
  inline NAME##1 make_##NAME##1(TYPE x) { return {x}; }                                                \
  inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                                     \
  inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }                          \
  inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
WOOLY_VECTOR(float, float)
WOOLY_VECTOR(double, double)
WOOLY_VECTOR(int, int)
WOOLY_VECTOR(unsigned, uint)
WOOLY_VECTOR(long, long)
WOOLY_VECTOR(unsigned long, ulong)
WOOLY_VECTOR(long long, longlong)
WOOLY_VECTOR(unsigned long long, ulonglong)
WOOLY_VECTOR(short, short)
WOOLY_VECTOR(unsigned short, ushort)
WOOLY_VECTOR(signed char, char)
WOOLY_VECTOR(unsigned char, uchar)
#undef WOOLY_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

/* Numbers of 16 bits, as far as the host makes them to give them to kernels. */
#define WOOLY_NARROW(NAME, OF_TORCH)                                                                   \
  struct NAME {                                                                                        \
    unsigned short bits;                                                                               \
    NAME() = default;                                                                                  \
    NAME(float x) : bits(OF_TORCH(x).x) {}                                                             \
    operator float() const { return OF_TORCH(bits, OF_TORCH::from_bits()); }                           \
  };                                                                                                   \
  struct alignas(4) NAME##2 { NAME x, y; };
WOOLY_NARROW(__half, c10::Half)
WOOLY_NARROW(__nv_bfloat16, c10::BFloat16)
#undef WOOLY_NARROW
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float __half2float(__half x) { return x; }
inline __half2 __float2half2_rn(float x) { return {x, x}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {x, x}; }

/* Functions of the device that CUDA's headers give the host as well, or that functions of both use. */
#define WOOLY_LEAST_AND_MOST(TYPE)                                                                     \
  inline TYPE min(TYPE a, TYPE b) { return b < a ? b : a; }                                            \
  inline TYPE max(TYPE a, TYPE b) { return a < b ? b : a; }
WOOLY_LEAST_AND_MOST(int)
WOOLY_LEAST_AND_MOST(unsigned)
WOOLY_LEAST_AND_MOST(long)
WOOLY_LEAST_AND_MOST(unsigned long)
WOOLY_LEAST_AND_MOST(long long)
WOOLY_LEAST_AND_MOST(unsigned long long)
WOOLY_LEAST_AND_MOST(float)
WOOLY_LEAST_AND_MOST(double)
#undef WOOLY_LEAST_AND_MOST
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
template <typename T> T __ldg(const T *x) { return *x; }
template <typename To, typename From> To wooly_bits(From x) {
  To to;
  std::memcpy(&to, &x, sizeof to);
  return to;
}
inline int __float_as_int(float x) { return wooly_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return wooly_bits<unsigned>(x); }
inline float __int_as_float(int x) { return wooly_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return wooly_bits<float>(x); }

enum cudaError {
  cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9, cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600, cudaErrorLaunchFailure = 719, cudaErrorNotSupported = 801, cudaErrorUnknown = 999
};
typedef cudaError cudaError_t;
typedef struct wooly_stream *cudaStream_t;
typedef cudaStream_t CUstream;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
struct cudaDeviceProp {
  char name[256] = "GPU";
  int multiProcessorCount = 1, warpSize = 32, maxThreadsPerBlock = 1024, maxThreadsPerMultiProcessor = 2048, major = 8, minor = 0;
  int maxThreadsDim[3] = {1024, 1024, 64}, maxGridSize[3] = {2147483647, 65535, 65535}, regsPerBlock = 65536, l2CacheSize = 40 << 20;
  int regsPerMultiprocessor = 65536, maxBlocksPerMultiProcessor = 32, clockRate = 1410000, concurrentKernels = 1, cooperativeLaunch = 0;
  size_t sharedMemPerBlock = 48 << 10, sharedMemPerBlockOptin = 48 << 10, sharedMemPerMultiprocessor = 164 << 10, totalGlobalMem = 0;
  size_t totalConstMem = 64 << 10;
};

namespace cooperative_groups {}  // for the names that files give it

namespace wooly {

struct Held {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Held() { PyGILState_Release(state); }
};

/* Calls a function of wooly/kernels/extension.py; `given` is owned by the call. What it raises becomes a RuntimeError of its message. */
inline unsigned long long call(const char *function, PyObject *given) {
  PyObject *module = PyImport_ImportModule("wooly.kernels.extension"), *made = nullptr;
  if (module && given) {
    PyObject *callee = PyObject_GetAttrString(module, function);
    if (callee) made = PyObject_CallObject(callee, given);
    Py_XDECREF(callee);
  }
  Py_XDECREF(module);
  Py_XDECREF(given);
  if (!made) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : nullptr;
    const char *words = text ? PyUnicode_AsUTF8(text) : nullptr;
    std::string message = words ? words : "a call of the CUDA runtime failed";
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    TORCH_CHECK(false, message);
  }
  unsigned long long number = PyLong_Check(made) ? PyLong_AsUnsignedLongLong(made) : 0;
  Py_DECREF(made);
  return number;
}

/* Registers the device's part of a source, to which launches refer by the name `source`. */
inline bool register_source(const char *source, const char *file, const char *device, const char *options) {
  Held held;
  call("register_source", Py_BuildValue("(ssss)", source, file, device, options));
  return true;
}

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
};
inline Configuration &configured() {
  static thread_local Configuration configuration;
  return configuration;
}
inline void configure(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  configured() = {grid, block, shared_bytes};
}

template <typename T> std::string type_name() {
  int status = 0;
  std::unique_ptr<char, void (*)(void *)> text(abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status), std::free);
  std::string name = text ? text.get() : typeid(T).name();
  if (std::is_const<typename std::remove_reference<T>::type>::value) name = "const " + name;
  return name;
}
template <typename T> std::string value_name(T value) {
  return "static_cast<" + type_name<T>() + ">(" + std::to_string(static_cast<long long>(value)) + ")";
}

/* Set while cudaLaunchKernel asks a stub for the name of its kernel. */
struct Name {
  std::string source, name;
};
inline Name *&asked() {
  static thread_local Name *name = nullptr;
  return name;
}

/* One launch of a kernel. Arguments are added in order, as bytes. */
class Launch {
  std::string source_, name_;
  std::vector<std::string> arguments_;

 public:
  Launch(const char *source, const char *name, std::initializer_list<std::string> types) : source_(source), name_(name) {
    std::string text;
    for (auto type = types.begin() + 1; type < types.end(); ++type) text += (text.empty() ? "" : ", ") + *type;
    if (types.size() > 1) name_ += "<" + text + ">";
  }

  /* Whether the stub was called for its name alone. It has no arguments then. */
  bool named() const {
    if (asked()) *asked() = {source_, name_};
    return asked();
  }

  void bytes(const void *from, size_t nbytes) { arguments_.emplace_back(static_cast<const char *>(from), nbytes); }

  template <typename T, size_t N, template <typename> class P, typename I> void add(const at::GenericPackedTensorAccessor<T, N, P, I> &value) {
    add(value.data());
    I dims[2 * N];
    for (size_t i = 0; i < N; ++i) dims[i] = value.size(i), dims[N + i] = value.stride(i);
    bytes(dims, sizeof dims);
  }

  template <typename T> void add(const T &value) {
    static_assert(std::is_trivially_copyable<T>::value, "a kernel's argument is copied as bytes");
    bytes(&value, sizeof value);
  }

  void run() {
    Held held;
    auto &to = configured();
    PyObject *given = PyList_New(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i)
      PyList_SET_ITEM(given, i, PyBytes_FromStringAndSize(arguments_[i].data(), (Py_ssize_t)arguments_[i].size()));
    call("launch", Py_BuildValue("(ss(III)(III)nN)", source_.c_str(), name_.c_str(), to.grid.x, to.grid.y, to.grid.z, to.block.x, to.block.y,
                                 to.block.z, (Py_ssize_t)to.shared_bytes, given));
  }
};

inline unsigned long long address(const volatile void *pointer) { return (unsigned long long)pointer; }

}  // namespace wooly

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }
inline const char *cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline cudaError_t cudaDeviceSynchronize() {
  wooly::Held held;
  wooly::call("synchronize", PyTuple_New(0));
  return cudaSuccess;
}
/* There is one order of work. All streams are in it. */
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaStreamCreate(cudaStream_t *stream) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };

/* The time of an event is that of this machine when the work before it is done. */
typedef struct wooly_event {
  bool timed = true;
  std::chrono::steady_clock::time_point at{};
} *cudaEvent_t;
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = new wooly_event{!(flags & cudaEventDisableTiming)};
  return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags = 0) { return cudaEventCreateWithFlags(event, flags); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
  if (event->timed) cudaDeviceSynchronize(), event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int *index) {
  wooly::Held held;
  *index = (int)wooly::call("current_device", PyTuple_New(0));
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int *count) {
  wooly::Held held;
  *count = (int)wooly::call("device_count", PyTuple_New(0));
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int index) {
  wooly::Held held;
  wooly::call("set_device", Py_BuildValue("(i)", index));
  return cudaSuccess;
}
template <typename T> cudaError_t cudaMalloc(T **pointer, size_t nbytes) {
  wooly::Held held;
  *pointer = (T *)wooly::call("allocate", Py_BuildValue("(n)", (Py_ssize_t)nbytes));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void *pointer) {
  wooly::Held held;
  wooly::call("free", Py_BuildValue("(K)", wooly::address(pointer)));
  return cudaSuccess;
}
template <typename T> cudaError_t cudaMallocAsync(T **pointer, size_t nbytes, cudaStream_t = nullptr) { return cudaMalloc(pointer, nbytes); }
inline cudaError_t cudaFreeAsync(void *pointer, cudaStream_t = nullptr) { return cudaFree(pointer); }
template <typename T> cudaError_t cudaMallocHost(T **pointer, size_t nbytes, unsigned = 0) {
  *pointer = (T *)std::malloc(nbytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
template <typename T> cudaError_t cudaHostAlloc(T **pointer, size_t nbytes, unsigned = 0) { return cudaMallocHost(pointer, nbytes); }
inline cudaError_t cudaFreeHost(void *pointer) { return std::free(pointer), cudaSuccess; }
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaMemAttachGlobal = 1 };
template <typename T> cudaError_t cudaMallocManaged(T **, size_t, unsigned = 1) {
  TORCH_CHECK(false, "cudaMallocManaged: this machine does not share memory with the remote device; use cudaMalloc and cudaMemcpy");
}
inline cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  wooly::Held held;
  *free = (size_t)wooly::call("free_memory", PyTuple_New(0));
  *total = (size_t)wooly::call("total_memory", PyTuple_New(0));
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void *pointer, int value, size_t nbytes) {
  wooly::Held held;
  wooly::call("fill", Py_BuildValue("(Kin)", wooly::address(pointer), value & 255, (Py_ssize_t)nbytes));
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void *pointer, int value, size_t nbytes, cudaStream_t = nullptr) { return cudaMemset(pointer, value, nbytes); }
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t nbytes, cudaMemcpyKind) {
  wooly::Held held;
  wooly::call("copy", Py_BuildValue("(KKn)", wooly::address(to), wooly::address(from), (Py_ssize_t)nbytes));
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t nbytes, cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, nbytes, kind);
}
inline cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  for (size_t row = 0; row < height; ++row) cudaMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
inline cudaError_t wooly_copy_to_symbol(const char *source, const char *name, const void *from, size_t nbytes, size_t offset = 0, int = 1, cudaStream_t = nullptr) {
  wooly::Held held;
  wooly::call("copy_to_variable", Py_BuildValue("(ssKnn)", source, name, wooly::address(from), (Py_ssize_t)nbytes, (Py_ssize_t)offset));
  return cudaSuccess;
}
inline cudaError_t wooly_copy_from_symbol(void *to, const char *source, const char *name, size_t nbytes, size_t offset = 0, int = 2, cudaStream_t = nullptr) {
  wooly::Held held;
  wooly::call("copy_from_variable", Py_BuildValue("(ssKnn)", source, name, wooly::address(to), (Py_ssize_t)nbytes, (Py_ssize_t)offset));
  return cudaSuccess;
}
template <typename T> cudaError_t wooly_symbol_address(T **pointer, const char *source, const char *name) {
  wooly::Held held;
  *pointer = (T *)wooly::call("address_of_variable", Py_BuildValue("(ss)", source, name));
  return cudaSuccess;
}
#define cudaMemcpyFromSymbol(to, symbol, ...) wooly_copy_from_symbol(to, WOOLY_SOURCE, #symbol, __VA_ARGS__)
#define cudaMemcpyFromSymbolAsync(to, symbol, ...) wooly_copy_from_symbol(to, WOOLY_SOURCE, #symbol, __VA_ARGS__)
#define cudaGetSymbolAddress(pointer, symbol) wooly_symbol_address(pointer, WOOLY_SOURCE, #symbol)
#define cudaMemcpyToSymbol(symbol, ...) wooly_copy_to_symbol(WOOLY_SOURCE, #symbol, __VA_ARGS__)
#define cudaMemcpyToSymbolAsync(symbol, ...) wooly_copy_to_symbol(WOOLY_SOURCE, #symbol, __VA_ARGS__)
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int) {
  wooly::Held held;
  *found = cudaDeviceProp();
  found->multiProcessorCount = (int)wooly::call("multiprocessors", PyTuple_New(0));
  found->totalGlobalMem = (size_t)wooly::call("total_memory", PyTuple_New(0));
  return cudaSuccess;
}
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock, cudaDevAttrMaxSharedMemoryPerBlock, cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor, cudaDevAttrMultiProcessorCount, cudaDevAttrWarpSize, cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor, cudaDevAttrMaxThreadsPerMultiProcessor, cudaDevAttrMaxRegistersPerBlock, cudaDevAttrL2CacheSize
};
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp found;
  cudaGetDeviceProperties(&found, index);
  const int values[] = {
      found.maxThreadsPerBlock, (int)found.sharedMemPerBlock, (int)found.sharedMemPerBlockOptin, (int)found.sharedMemPerMultiprocessor,
      found.multiProcessorCount, found.warpSize, found.major, found.minor, found.maxThreadsPerMultiProcessor, found.regsPerBlock,
      found.l2CacheSize};
  *value = values[attribute];
  return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDA_VERSION, cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDA_VERSION, cudaSuccess; }
/* `function` is the stub of a kernel, which says its name. How large each argument is, the kernel tells. */
inline cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared_bytes = 0, cudaStream_t = nullptr) {
  wooly::Name found;
  wooly::asked() = &found;
  if (function) reinterpret_cast<void (*)()>(const_cast<void *>(function))();
  wooly::asked() = nullptr;
  TORCH_CHECK(!found.name.empty(), "cudaLaunchKernel: what it is given is no kernel");
  wooly::Held held;
  wooly::call("launch_from", Py_BuildValue("(ss(III)(III)nK)", found.source.c_str(), found.name.c_str(), grid.x, grid.y, grid.z, block.x, block.y,
                                           block.z, (Py_ssize_t)shared_bytes, wooly::address(args)));
  return cudaSuccess;
}
template <typename... A>
cudaError_t cudaLaunchKernel(void (*function)(A...), dim3 grid, dim3 block, void **args, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  return cudaLaunchKernel((const void *)function, grid, block, args, shared_bytes, stream);
}
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
template <typename F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
template <typename F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) { return cudaSuccess; }
template <typename F> cudaError_t cudaOccupancyMaxPotentialBlockSize(int *grid, int *block, F, size_t = 0, int most = 0) {
  *block = most && most < 256 ? most : 256;
  *grid = 64;
  return cudaSuccess;
}

template <typename F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F, int threads, size_t) {
  *blocks = threads > 1024 ? 1 : 2048 / (threads > 0 ? threads : 1);
  return cudaSuccess;
}

#define C10_CUDA_CHECK(...) (void)(__VA_ARGS__)
#define C10_CUDA_CHECK_WARN(...) (void)(__VA_ARGS__)
#define C10_CUDA_IGNORE_ERROR(...) (void)(__VA_ARGS__)
#define AT_CUDA_CHECK(...) (void)(__VA_ARGS__)
#define CUDA_CHECK_ERRORS()
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (void)0
#define TORCH_CUDA_KERNEL_LAUNCH_CHECK() (void)0
#define THCudaCheck(...) (void)(__VA_ARGS__)

namespace c10 { namespace cuda {
inline c10::DeviceIndex current_device() {
  int index;
  cudaGetDevice(&index);
  return index;
}
inline c10::DeviceIndex device_count() {
  int count;
  cudaGetDeviceCount(&count);
  return count;
}
inline void set_device(int index) { cudaSetDevice(index); }
inline void device_synchronize() { cudaDeviceSynchronize(); }
struct CUDAStream {
  CUDAStream() {}
  explicit CUDAStream(c10::Stream) {}
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
  c10::Stream unwrap() const { return c10::Stream(c10::Stream::DEFAULT, device()); }
  operator c10::Stream() const { return unwrap(); }
  c10::Device device() const { return {c10::DeviceType::CUDA, device_index()}; }
  c10::DeviceIndex device_index() const { return current_device(); }
  c10::StreamId id() const { return 0; }
  bool query() const { return true; }
  void synchronize() const { cudaDeviceSynchronize(); }
  bool operator==(const CUDAStream &) const { return true; }
  bool operator!=(const CUDAStream &) const { return false; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(int = 0, int = -1) { return {}; }
inline CUDAStream getStreamFromExternal(cudaStream_t, int) { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}
struct CUDAGuard {
  explicit CUDAGuard(int index) : guard_(c10::Device(c10::DeviceType::CUDA, index)) {}
  explicit CUDAGuard(c10::Device device) : guard_(device) {}
  void set_device(c10::Device device) { guard_.reset_device(device); }
  void reset_device(c10::Device device) { guard_.reset_device(device); }
  void set_index(int index) { guard_.set_index(index); }
  c10::Device original_device() const { return guard_.original_device(); }
  c10::Device current_device() const { return guard_.current_device(); }

 private:
  c10::DeviceGuard guard_;
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() {}
  explicit OptionalCUDAGuard(std::optional<c10::Device> device) : guard_(device) {}
  explicit OptionalCUDAGuard(int index) { set_index(index); }
  void set_device(c10::Device device) { guard_.reset_device(device); }
  void set_index(int index) { guard_.reset_device(c10::Device(c10::DeviceType::CUDA, index)); }
  void reset() {}

 private:
  c10::OptionalDeviceGuard guard_;
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(c10::Stream) {}
  void reset_stream(c10::Stream) {}
  CUDAStream current_stream() const { return {}; }
  CUDAStream original_stream() const { return {}; }
};
struct OptionalCUDAStreamGuard {
  OptionalCUDAStreamGuard() {}
  explicit OptionalCUDAStreamGuard(std::optional<c10::Stream>) {}
  void reset_stream(c10::Stream) {}
};
namespace CUDACachingAllocator {
inline void *raw_alloc(size_t nbytes) {
  char *pointer;
  cudaMalloc(&pointer, nbytes);
  return pointer;
}
inline void *raw_alloc_with_stream(size_t nbytes, cudaStream_t) { return raw_alloc(nbytes); }
inline void raw_delete(void *pointer) { cudaFree(pointer); }
inline c10::Allocator *get() { return c10::GetAllocator(c10::DeviceType::CUDA); }
inline void recordStream(const c10::DataPtr &, CUDAStream) {}
inline void emptyCache() {}
}  // namespace CUDACachingAllocator
}}  // namespace c10::cuda

namespace at { namespace cuda {
using namespace c10::cuda;
using c10::cuda::CUDAGuard;
using c10::cuda::OptionalCUDAGuard;
inline bool is_available() { return device_count() > 0; }
inline int64_t getNumGPUs() { return device_count(); }
inline int warp_size() { return 32; }
template <typename T> T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }
inline c10::Allocator *getCUDADeviceAllocator() { return CUDACachingAllocator::get(); }
inline cudaDeviceProp *getCurrentDeviceProperties() {
  static cudaDeviceProp found;
  cudaGetDeviceProperties(&found, 0);
  return &found;
}
inline cudaDeviceProp *getDeviceProperties(int) { return getCurrentDeviceProperties(); }
struct CUDAEvent {
  explicit CUDAEvent(unsigned flags = cudaEventDisableTiming) { cudaEventCreateWithFlags(&event_, flags); }
  CUDAEvent(const CUDAEvent &) = delete;
  ~CUDAEvent() { cudaEventDestroy(event_); }
  cudaEvent_t event() const { return event_; }
  operator cudaEvent_t() const { return event_; }
  void record() { cudaEventRecord(event_); }
  void record(const CUDAStream &) { record(); }
  void recordOnce(const CUDAStream &) { record(); }
  void block(const CUDAStream &) {}
  bool query() const { return true; }
  void synchronize() const { cudaEventSynchronize(event_); }
  float elapsed_time(const CUDAEvent &to) const {
    float ms;
    cudaEventElapsedTime(&ms, event_, to.event_);
    return ms;
  }

 private:
  cudaEvent_t event_;
};
}}  // namespace at::cuda

/* torch has it for nvcc only. */
namespace torch { namespace headeronly {
template <typename T> struct RestrictPtrTraits { typedef T *__restrict__ PtrType; };
}}
namespace at { using torch::headeronly::RestrictPtrTraits; }
namespace torch { using torch::headeronly::RestrictPtrTraits; }
