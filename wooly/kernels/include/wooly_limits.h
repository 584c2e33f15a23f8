/* std::numeric_limits, with those of torch's types of 16 bits, and at::numeric_limits. */
#pragma once
#include <cuda/std/limits>
#include "wooly_torch.h"

#define WOOLY_LIMITS(NAME, FROM_BITS, LEAST, MOST, EPSILON, TINY, INF, QUIET)                     \
  template <> class numeric_limits<NAME> {                                                       \
   public:                                                                                       \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, has_infinity = true, has_quiet_NaN = true; \
    static __device__ NAME make(unsigned short bits) { return NAME(FROM_BITS(bits)); }           \
    static __device__ NAME min() { return make(TINY); }                                          \
    static __device__ NAME lowest() { return make(LEAST); }                                      \
    static __device__ NAME max() { return make(MOST); }                                          \
    static __device__ NAME epsilon() { return make(EPSILON); }                                   \
    static __device__ NAME infinity() { return make(INF); }                                      \
    static __device__ NAME quiet_NaN() { return make(QUIET); }                                   \
  };
namespace cuda { namespace std {
WOOLY_LIMITS(c10::Half, __ushort_as_half, 0xFBFF, 0x7BFF, 0x1400, 0x0400, 0x7C00, 0x7E00)
WOOLY_LIMITS(c10::BFloat16, __ushort_as_bfloat16, 0xFF7F, 0x7F7F, 0x3C00, 0x0080, 0x7F80, 0x7FC0)
}}  // namespace cuda::std
#undef WOOLY_LIMITS

namespace at {
template <typename T> struct numeric_limits : ::cuda::std::numeric_limits<T> {
  typedef ::cuda::std::numeric_limits<T> Base;
  static __device__ T lower_bound() { return Base::has_infinity ? T(-Base::infinity()) : Base::lowest(); }
  static __device__ T upper_bound() { return Base::has_infinity ? Base::infinity() : Base::max(); }
};
}  // namespace at
