// While one lives, this thread computes as IEEE 754 says: denormals are kept (FTZ and DAZ clear),
// rounding is to nearest even. Whatever was set before comes back with the destructor.
//
// Other libraries set these per thread (torch.set_flush_denormal, -ffast-math objects at start-up),
// and worker threads inherit what their creator had. Bits must not depend on that.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sluice::kernels::host {

class IeeeArithmetic {
 public:
#if defined(__SSE2__)
  IeeeArithmetic() : before_(_mm_getcsr()) {
    if ((before_ & kModes) != 0) _mm_setcsr(before_ & ~kModes);
  }
  ~IeeeArithmetic() {
    if ((before_ & kModes) != 0) _mm_setcsr(before_);
  }

 private:
  // MXCSR (Intel SDM vol. 1, 10.2.3): bit 15 FTZ, bits 14:13 rounding control, bit 6 DAZ.
  static constexpr unsigned kModes = 0x8000u | 0x6000u | 0x0040u;
  unsigned before_;
#else
  IeeeArithmetic() {}
  ~IeeeArithmetic() {}
#endif

 public:
  IeeeArithmetic(const IeeeArithmetic&) = delete;
  IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;
};

}  // namespace sluice::kernels::host
