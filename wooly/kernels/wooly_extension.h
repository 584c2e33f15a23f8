/* Included before every source of a C++ extension with CUDA sources: CUDA's runtime as far as extensions use it, on a remote device.
   Launches and copies go to wooly/kernels/extension.py. torch's devices of type CUDA are called PrivateUse1 here. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/types.h>

#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
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
#define __align__(n) alignas(n)
#ifndef __noinline__
#define __noinline__
#endif

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define WOOLY_VECTOR(TYPE, NAME, SIZE)                                                                 \
  struct alignas(2 * sizeof(TYPE) > 16 ? 16 : 2 * sizeof(TYPE)) NAME##2 { TYPE x, y; };                \
  struct NAME##3 { TYPE x, y, z; };                                                                    \
  struct alignas(4 * sizeof(TYPE) > 16 ? 16 : 4 * sizeof(TYPE)) NAME##4 { TYPE x, y, z, w; };          \
  inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                                     \
  inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }                          \
  inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
WOOLY_VECTOR(float, float, 4)
WOOLY_VECTOR(double, double, 8)
WOOLY_VECTOR(int, int, 4)
WOOLY_VECTOR(unsigned, uint, 4)
WOOLY_VECTOR(long long, longlong, 8)
WOOLY_VECTOR(short, short, 2)
WOOLY_VECTOR(unsigned char, uchar, 1)
#undef WOOLY_VECTOR

struct __half { unsigned short bits; };
struct __half2 { __half x, y; };
struct __nv_bfloat16 { unsigned short bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;

enum cudaError_t { cudaSuccess = 0, cudaErrorUnknown = 999 };
typedef struct wooly_stream *cudaStream_t;
typedef cudaStream_t CUstream;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
struct cudaDeviceProp {
  char name[256] = "GPU";
  int multiProcessorCount = 1, warpSize = 32, maxThreadsPerBlock = 1024, maxThreadsPerMultiProcessor = 2048, major = 8, minor = 0;
  size_t sharedMemPerBlock = 48 << 10, totalGlobalMem = 0;
};

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
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaGetDevice(int *index) {
  wooly::Held held;
  *index = (int)wooly::call("current_device", PyTuple_New(0));
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
inline cudaError_t wooly_copy_to_symbol(const char *source, const char *name, const void *from, size_t nbytes, size_t offset = 0, int = 1, cudaStream_t = nullptr) {
  wooly::Held held;
  wooly::call("copy_to_variable", Py_BuildValue("(ssKnn)", source, name, wooly::address(from), (Py_ssize_t)nbytes, (Py_ssize_t)offset));
  return cudaSuccess;
}
#define cudaMemcpyToSymbol(symbol, ...) wooly_copy_to_symbol(WOOLY_SOURCE, #symbol, __VA_ARGS__)
#define cudaMemcpyToSymbolAsync(symbol, ...) wooly_copy_to_symbol(WOOLY_SOURCE, #symbol, __VA_ARGS__)
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int) {
  wooly::Held held;
  *found = cudaDeviceProp();
  found->multiProcessorCount = (int)wooly::call("multiprocessors", PyTuple_New(0));
  return cudaSuccess;
}
/* `function` is the stub of a kernel, whose name is found by its address; how large each argument is, by the name. */
inline cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared_bytes = 0, cudaStream_t = nullptr) {
  Dl_info found;
  TORCH_CHECK(dladdr(function, &found) && found.dli_sname, "cudaLaunchKernel: the kernel has no name outside of its file; use kernel<<<...>>>()");
  int status = 0;
  std::unique_ptr<char, void (*)(void *)> name(abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status), std::free);
  wooly::Held held;
  wooly::call("launch_by_name", Py_BuildValue("(s(III)(III)nK)", name ? name.get() : found.dli_sname, grid.x, grid.y, grid.z, block.x, block.y,
                                              block.z, (Py_ssize_t)shared_bytes, wooly::address(args)));
  return cudaSuccess;
}
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
#define AT_CUDA_CHECK(...) (void)(__VA_ARGS__)
#define CUDA_CHECK_ERRORS()
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (void)0
#define THCudaCheck(...) (void)(__VA_ARGS__)

namespace c10 { namespace cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
  void synchronize() const { cudaDeviceSynchronize(); }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
struct CUDAGuard {
  explicit CUDAGuard(int) {}
  explicit CUDAGuard(c10::Device) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() {}
  explicit OptionalCUDAGuard(c10::optional<c10::Device>) {}
  void set_index(int) {}
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream) {}
};
inline int current_device() {
  int index;
  cudaGetDevice(&index);
  return index;
}
inline int device_count() { return 1; }
}}  // namespace c10::cuda

namespace at { namespace cuda {
using namespace c10::cuda;
using OptionalCUDAGuard = c10::cuda::OptionalCUDAGuard;
using CUDAGuard = c10::cuda::CUDAGuard;
inline cudaDeviceProp *getCurrentDeviceProperties() {
  static cudaDeviceProp found;
  cudaGetDeviceProperties(&found, 0);
  return &found;
}
inline cudaDeviceProp *getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}}  // namespace at::cuda

#ifndef WOOLY_HAS_RESTRICT
namespace torch { namespace headeronly {
template <typename T> struct RestrictPtrTraits { typedef T *__restrict__ PtrType; };
}}
namespace at { using torch::headeronly::RestrictPtrTraits; }
namespace torch { using torch::headeronly::RestrictPtrTraits; }
#endif
