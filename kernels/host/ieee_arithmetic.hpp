// RAII: makes this thread compute as IEEE 754 requires. Denormals are kept (FTZ and DAZ clear), and
// rounding is to nearest even. The destructor restores the previous mode.
//
// Other libraries change these modes per thread (torch.set_flush_denormal, -ffast-math objects at
// start-up), and worker threads inherit them from their creator. Our bits must not depend on that.
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
