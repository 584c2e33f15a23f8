/* What device code of an extension uses of torch's headers: half types that compute in float, and packed accessors. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_WARP_SIZE 32
#define C10_RESTRICT __restrict__
#define C10_ALWAYS_INLINE __forceinline__
#define C10_UNLIKELY(x) (x)
#define C10_LIKELY(x) (x)
#define CUDA_KERNEL_ASSERT(condition) ((condition) ? (void)0 : __trap())
#define CUDA_KERNEL_ASSERT_MSG(condition, ...) CUDA_KERNEL_ASSERT(condition)

#define CUDA_KERNEL_LOOP_TYPE(i, n, Index)                                                       \
  for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (Index)blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#define CUDA_1D_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

namespace c10 {

#define WOOLY_NARROW(NAME, HELD, FROM, TO, BITS, OF_BITS)                                        \
  struct NAME {                                                                                  \
    unsigned short x;                                                                            \
    struct from_bits_t {};                                                                       \
    static __device__ from_bits_t from_bits() { return {}; }                                     \
    NAME() = default;                                                                            \
    __device__ NAME(unsigned short bits, from_bits_t) : x(bits) {}                               \
    __device__ NAME(float value) : x(BITS(FROM(value))) {}                                       \
    __device__ NAME(HELD value) : x(BITS(value)) {}                                              \
    __device__ operator float() const { return TO(OF_BITS(x)); }                                 \
    __device__ operator HELD() const { return OF_BITS(x); }                                      \
  };                                                                                             \
  WOOLY_OPERATOR(NAME, +) WOOLY_OPERATOR(NAME, -) WOOLY_OPERATOR(NAME, *) WOOLY_OPERATOR(NAME, /) \
  __device__ inline NAME operator-(NAME a) { return NAME(-float(a)); }

#define WOOLY_OPERATOR(NAME, OP)                                                                 \
  __device__ inline NAME operator OP(NAME a, NAME b) { return NAME(float(a) OP float(b)); }      \
  __device__ inline float operator OP(NAME a, float b) { return float(a) OP b; }                 \
  __device__ inline float operator OP(float a, NAME b) { return a OP float(b); }                 \
  __device__ inline double operator OP(NAME a, double b) { return float(a) OP b; }               \
  __device__ inline double operator OP(double a, NAME b) { return a OP float(b); }               \
  __device__ inline NAME operator OP(NAME a, int b) { return NAME(float(a) OP float(b)); }       \
  __device__ inline NAME operator OP(int a, NAME b) { return NAME(float(a) OP float(b)); }       \
  __device__ inline NAME operator OP(NAME a, long b) { return NAME(float(a) OP float(b)); }      \
  __device__ inline NAME operator OP(long a, NAME b) { return NAME(float(a) OP float(b)); }      \
  __device__ inline NAME &operator OP##=(NAME &a, NAME b) { return a = NAME(float(a) OP float(b)); }

WOOLY_NARROW(Half, __half, __float2half_rn, __half2float, __half_as_ushort, __ushort_as_half)
WOOLY_NARROW(BFloat16, __nv_bfloat16, __float2bfloat16_rn, __bfloat162float, __bfloat16_as_ushort, __ushort_as_bfloat16)
#undef WOOLY_OPERATOR
#undef WOOLY_NARROW

}  // namespace c10

namespace torch {

template <typename T> struct DefaultPtrTraits { typedef T *PtrType; };
template <typename T> struct RestrictPtrTraits { typedef T *__restrict__ PtrType; };

template <typename T, int N, template <typename> class Traits, typename Index> struct TensorAccessor {
  typename Traits<T>::PtrType data_;
  const Index *sizes_, *strides_;
  __device__ TensorAccessor<T, N - 1, Traits, Index> operator[](Index i) const { return {data_ + strides_[0] * i, sizes_ + 1, strides_ + 1}; }
  __device__ Index size(Index i) const { return sizes_[i]; }
  __device__ Index stride(Index i) const { return strides_[i]; }
  __device__ typename Traits<T>::PtrType data() const { return data_; }
};

template <typename T, template <typename> class Traits, typename Index> struct TensorAccessor<T, 1, Traits, Index> {
  typename Traits<T>::PtrType data_;
  const Index *sizes_, *strides_;
  __device__ T &operator[](Index i) const { return data_[strides_[0] * i]; }
  __device__ Index size(Index i) const { return sizes_[i]; }
  __device__ Index stride(Index i) const { return strides_[i]; }
  __device__ typename Traits<T>::PtrType data() const { return data_; }
};

template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t> struct PackedTensorAccessor {
  typedef typename Traits<T>::PtrType PtrType;
  struct Dims { Index sizes[N], strides[N]; };
  PtrType data_;
  Dims dims;
  __device__ PackedTensorAccessor(PtrType data, const Dims &dims) : data_(data), dims(dims) {}
  __device__ decltype(auto) operator[](Index i) const { return TensorAccessor<T, N, Traits, Index>{data_, dims.sizes, dims.strides}[i]; }
  __device__ Index size(Index i) const { return dims.sizes[i]; }
  __device__ Index stride(Index i) const { return dims.strides[i]; }
  __device__ PtrType data() const { return data_; }
};

template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int>;
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;

}  // namespace torch

namespace at {

using c10::BFloat16;
using c10::Half;
using namespace torch;

template <typename T> struct OpMathType { typedef T type; };
template <> struct OpMathType<Half> { typedef float type; };
template <> struct OpMathType<BFloat16> { typedef float type; };
template <typename T> using opmath_type = typename OpMathType<T>::type;
template <typename T, bool> using acc_type = typename OpMathType<T>::type;

namespace cuda { namespace detail {

template <typename T, typename Index> struct TensorInfo {
  T *data;
  Index sizes[25], strides[25];
  int dims;
  __device__ bool isContiguous() const { return dims == 1 && strides[0] == 1; }
};

/* Where element `place` in the order of rows lies; of `Dims` dimensions, or as many as there are. */
template <typename T, typename Index, int Dims> struct IndexToOffset {
  static __device__ Index get(Index place, const TensorInfo<T, Index> &info) {
    Index offset = 0;
    for (int i = (Dims < 0 ? info.dims : Dims) - 1; i > 0; --i, place /= info.sizes[i + 1]) offset += place % info.sizes[i] * info.strides[i];
    return offset + place * info.strides[0];
  }
};

}}  // namespace cuda::detail

}  // namespace at

namespace torch {
using at::BFloat16;
using at::Half;
}  // namespace torch

/* What is no atomic instruction of the device, by comparison and exchange; a number of 8 bits with the 32 bits around it. */
template <typename Word, typename T, typename F> __device__ inline T wooly_exchange(T *at, F of) {
  Word *word = (Word *)at, seen, found = *word;
  do {
    seen = found;
    T now = of(*(T *)&seen);
    found = atomicCAS(word, seen, *(Word *)&now);
  } while (found != seen);
  return *(T *)&found;
}
template <typename T, typename F> __device__ inline T wooly_atomic(T *at, F of) {
  if constexpr (sizeof(T) == 8) {
    return wooly_exchange<unsigned long long>(at, of);
  } else if constexpr (sizeof(T) == 4) {
    return wooly_exchange<unsigned>(at, of);
  } else if constexpr (sizeof(T) == 2) {
    return wooly_exchange<unsigned short>(at, of);
  } else {
    const unsigned shift = ((size_t)at & 3) * 8;
    unsigned before = wooly_exchange<unsigned>((unsigned *)((char *)at - ((size_t)at & 3)), [&](unsigned word) {
      return (word & ~(255u << shift)) | (unsigned)(unsigned char)of((T)(word >> shift & 255)) << shift;
    });
    return (T)(before >> shift & 255);
  }
}
#define WOOLY_ATOMIC(NAME, EXPRESSION)                                                           \
  template <typename T> __device__ inline T gpuAtomic##NAME(T *at, T by) {                       \
    return wooly_atomic(at, [by](T held) {                                                       \
      const at::opmath_type<T> x = held, y = by;                                                 \
      return T(EXPRESSION);                                                                      \
    });                                                                                          \
  }
WOOLY_ATOMIC(Mul, x * y)
WOOLY_ATOMIC(Max, x != x || y < x ? x : y)
WOOLY_ATOMIC(Min, x != x || x < y ? x : y)
#undef WOOLY_ATOMIC
template <typename T> __device__ inline T gpuAtomicAdd(T *at, T by) {
  if constexpr (sizeof(T) < 4) {
    return wooly_atomic(at, [by](T held) { return T(held + by); });
  } else {
    return atomicAdd(at, by);
  }
}
__device__ inline at::Half gpuAtomicAdd(at::Half *at, at::Half by) { return atomicAdd((__half *)at, __half(by)); }
__device__ inline at::BFloat16 gpuAtomicAdd(at::BFloat16 *at, at::BFloat16 by) { return atomicAdd((__nv_bfloat16 *)at, __nv_bfloat16(by)); }
__device__ inline int64_t gpuAtomicAdd(int64_t *at, int64_t by) { return atomicAdd((unsigned long long *)at, (unsigned long long)by); }
template <typename T> __device__ inline void gpuAtomicAddNoReturn(T *at, T by) { gpuAtomicAdd(at, by); }
__device__ inline at::Half atomicAdd(at::Half *at, at::Half by) { return gpuAtomicAdd(at, by); }
__device__ inline at::BFloat16 atomicAdd(at::BFloat16 *at, at::BFloat16 by) { return gpuAtomicAdd(at, by); }
__device__ inline int64_t atomicAdd(int64_t *at, int64_t by) { return gpuAtomicAdd(at, by); }

namespace at {
template <typename T> __host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <typename T> __host__ __device__ constexpr T round_up(T a, T b) { return ceil_div(a, b) * b; }
namespace native {
template <typename T, typename Index> __device__ inline void fastAtomicAdd(T *to, Index at, Index, T by, bool) { gpuAtomicAdd(to + at, by); }
}
}  // namespace at

template <typename T> __device__ inline T WARP_SHFL(T x, int from, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_sync(mask, x, from, width);
}
template <typename T> __device__ inline T WARP_SHFL_XOR(T x, int by, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_xor_sync(mask, x, by, width);
}
template <typename T> __device__ inline T WARP_SHFL_UP(T x, unsigned by, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_up_sync(mask, x, by, width);
}
template <typename T> __device__ inline T WARP_SHFL_DOWN(T x, unsigned by, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_down_sync(mask, x, by, width);
}
__device__ inline unsigned WARP_BALLOT(int condition, unsigned mask = 0xffffffff) { return __ballot_sync(mask, condition); }
