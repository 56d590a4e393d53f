// The optimizers' arithmetic, and the arguments of an update. The settings, and the state that each
// rule keeps between steps, are in optimizer_options.hpp.
//
// All rules compute in fp32 (docs/design/arithmetic.md). Each operation is rounded on its own in
// the order written here: no fused multiply-add, IEEE division and square root, denormals kept. The
// bits are therefore the same for every instruction set, thread count, device, and way of cutting a
// tensor into pieces. Constants of a step are computed in fp64 and rounded once (AdamConstants).
//
//   g  = round(grad) * grad_scale      rounded only if 16-bit gradients were summed in fp32
//   lr = UpdateScalars::lr * ParameterSegment::lr_scale;   decay = ParameterSegment::weight_decay
//
//   adamw      m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*(g*g);  w = w - (lr*decay)*w
//              w = w - (lr/bc1) * (m / (sqrt(v) * (1/sqrt(bc2)) + eps)),   bc_i = 1 - b_i^step
//              (Loshchilov and Hutter 2019; as torch.optim.AdamW)
//   adam       as adamw without the decay of w; first g = g + decay*w (L2; torch.optim.Adam)
//   sgd        g = g + decay*w;  m = momentum*m + g;  u = nesterov ? g + momentum*m : m
//              w = w - lr*u          (torch.optim.SGD with dampening 0)
//   lion       u = sign(b1*m + (1-b1)*g);  w = w - (lr*decay)*w;  w = w - lr*u
//              m = b2*m + (1-b2)*g   (Chen et al. 2023)
//   adafactor  s = lerp(s, mean of g*g, step^beta2_decay) for each row and column of a matrix
//              u = g * min((1/sqrt(s_row/M)) * (1/sqrt(s_col)), 2^23)
//                  M = max(mean of s_row, 2^-23)
//              one row (a vector): s = lerp(s, g*g, ...) for each element
//              u = g * min(1/sqrt(s), 2^23)
//              w = w - (lr*decay)*w;  w = w - a*u
//                  a = max(relative_floor, rms(w before)) * min(lr, 1/sqrt(step))
//                      / max(1, rms(u)/clip_threshold), in fp64, rounded once
//                  lerp(s, x, t) = t < 1/2 ? s + t*(x-s) : x - (x-s)*(1-t)
//              (Shazeer and Stern 2018; as torch.optim.Adafactor with its fp32 epsilon of 2^-23,
//              but with roots of rows and columns in place of the root of their product)
//   sm3        A = min(A_row, A_col) + g*g;  one row (a vector): A = A + g*g
//              m = b1*m + (1-b1)*(g / sqrt(A + 1e-30))
//              w = w - (lr*decay)*w;  w = w - lr*m;  A_row, A_col = the largest A there (NaN: none)
//              (SM3-II of Anil et al. 2019, in the order of google-research's sm3.py)
//   muon       m = mu*m + (1-mu)*g;  u = mu*m + (1-mu)*g;  X = u / max(norm(u), 1e-7); then n times
//              A = X X^T (rows > cols: X^T X, and X P below);  P = aI + (bA + cAA);  X = P X
//              w = w - (lr*decay)*w;  w = w - (lr * 0.2 * sqrt(max(rows, cols))) * X
//              for hidden matrices (Jordan 2024; a, b, c as in torch.optim.Muon; the steps are
//              scaled to the RMS of AdamW's: Moonshot 2025). Other tensors use adamw.
//              Products are the device's fp32 GEMM; only they depend on the device.
//
// Order of adafactor's sums: a tile is 64 rows by 1,024 columns. A row of a tile is summed in fp32
// in 16 lanes (element i in lane i % 16, added by halves), a column of a tile in fp32 in row
// order. The rest is fp64: a line adds its tiles' partial sums in order; an RMS adds the rows of
// each tile in order, then the tiles. Order of muon's norm: 256 elements in fp32 in 16 lanes, then
// fp64 over 64 of these sums, then over all.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "kernels/optimizer_options.hpp"
#include "kernels/parameter_segment.hpp"

namespace sluice::kernels {

// Visits the elements of a chunk while an update has them in cache: verifies state before it is
// read, and computes checksums after it is written.
class UpdateGuard {
 public:
  static constexpr std::int64_t kElems = kLawBlockElems;

  virtual ~UpdateGuard() = default;
  // Each element is in exactly one range of before(), called before the update reads it, and in one
  // of after(), called after it is written. Ranges begin at multiples of kElems and end there or at
  // the end of the chunk. Several threads may call at once. An exception of before() ends the
  // update; other ranges may be updated or not.
  virtual void before(std::int64_t begin, std::int64_t end) = 0;
  virtual void after(std::int64_t begin, std::int64_t end) = 0;
};

// Options of an update on the host. Other devices ignore them.
struct HostUpdate {
  UpdateGuard* guard = nullptr;  // null: none
  // Uses only the calling thread. For state that arrives more slowly than one thread updates it: a
  // waiting team would poll for work between pieces. Rules that need whole tensors ignore it.
  bool one_thread = false;
};

struct UpdateBuffers {
  const void* grad = nullptr;
  DType grad_dtype = DType::kBF16;    // kBF16, kF16 or kF32
  DType round_grad_to = DType::kF32;  // kBF16, kF16: fp32 sums of such gradients, rounded once
  void* weight = nullptr;             // dtype: OptimizerOptions::weight
  void* master = nullptr;             // null if the weight is the master
  void* moment1 = nullptr;            // null if the rule has none
  void* moment2 = nullptr;
  std::int64_t elems = 0;  // length of the chunk; kBlock8: a multiple of 4,096
  HostUpdate host = {};
};

struct UpdateScalars {
  float lr = 0;
  float grad_scale = 1;   // clip factor / loss scale
  std::int64_t step = 1;  // number of this update, from 1
};

// Floating point operations of an update's matrix products; only muon has any.
double update_product_flops(const OptimizerOptions& options,
                            std::span<const ParameterSegment> segments);

// Constants of step `step` for adam, adamw and muon's other tensors, computed in fp64.
struct AdamConstants {
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0, epsilon = 0;
  float bias_correction1 = 1;  // 1 - b1^step
  float root_scale = 1;        // 1 / sqrt(1 - b2^step)
};
AdamConstants adam_constants(const OptimizerOptions& options, std::int64_t step);

}  // namespace sluice::kernels
