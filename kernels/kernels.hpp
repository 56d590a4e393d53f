// The math of a training step: stateless operations on buffers and workspaces of the caller.
//
// There is one interface and an implementation per device: kernels/host (oneDNN, Highway, oneTBB)
// and kernels/cuda. Calls are made inside Stream::launch. The host computes before it returns; CUDA
// queues on the stream given by set_stream.
//
// Conventions. Arrays are row-major. `act` dtypes are kBF16, kF16 or kF32; one call has one `dtype`
// for its activations, weights and gradients. Sums are fp32 and are rounded once, to nearest even,
// when they are stored; a sum too large for fp16 becomes infinity. Workspaces are 256-byte aligned
// and have at least *_workspace_bytes bytes, a pure function of the shape (and of the machine).
// Ranges of different arguments do not overlap unless the function says "in place". Results have
// the same bits for any number of threads: work is cut by shape alone, and no sum depends on the
// thread that computes it. Errors: a shape that breaks a stated bound throws InternalError.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.hpp"

namespace sluice::kernels {

// kernels/optimizer.hpp has them.
struct OptimizerOptions;
struct ParameterSegment;
struct UpdateBuffers;
struct UpdateScalars;

// The dtypes that activations, weights and gradients may have.
constexpr bool is_act_dtype(DType type) {
  return type == DType::kBF16 || type == DType::kF16 || type == DType::kF32;
}

// C[m, n] = op(A) op(B) (+ bias[n]); leading dimensions are dense.
// op(A) is [m, k]: stored [m, k], or [k, m] when transpose_a. op(B) is [k, n]: stored [k, n], or
// [n, k] when transpose_b. Never accumulates into C (law 2: no beta = 1).
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType dtype = DType::kBF16;   // of A, B and bias
  DType output = DType::kBF16;  // of C: the same dtype, or kF32
};

// Causal self-attention over packed rows: qkv is [batch, time, (heads + 2*kv_heads) * head_dim].
// Each row holds q (heads), then k (kv_heads), then v (kv_heads). heads % kv_heads == 0; scores are
// scaled by 1/sqrt(head_dim).
// first_position: of row 0, for rotary embeddings.
struct AttentionShape {
  std::int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  DType dtype = DType::kBF16;
  std::int64_t first_position = 0;
};

// A rectangle of one sequence's scores: some of its queries against keys that may come from another
// rank. Every query sees all keys, or, if causal, query i the keys 0 to i. qkv: packed rows of the
// queries, as above. kv: rows of the keys, each k (kv_heads), then v (kv_heads). lse_stride: floats
// between heads of lse, which may have more rows than there are queries.
struct AttentionPart {
  std::int64_t queries = 0, keys = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false;
  std::int64_t lse_stride = 0;
  DType dtype = DType::kBF16;
};

struct NormShape {
  std::int64_t rows = 0, cols = 0;
  bool rms = false;  // RMSNorm: no mean, no bias
  float epsilon = 1e-5f;
  DType dtype = DType::kBF16;
};

// Language-model head with softmax cross-entropy. x [rows, hidden]; w [vocab, hidden]; targets
// [rows], int32 in [0, vocab). Only one slice of the logits exists at a time. first_token: of a
// rank that has rows [first_token, first_token + vocab) of the whole w; targets count from 0.
struct HeadShape {
  std::int64_t rows = 0, hidden = 0, vocab = 0;
  DType dtype = DType::kBF16;
  std::int64_t first_token = 0;
};

// The tokens [first, first + count) of [0, vocab).
struct TokenRange {
  std::int64_t first = 0, count = 0, vocab = 0;
};
constexpr TokenRange all_tokens(std::int64_t vocab) {
  return {0, vocab, vocab};
}

// For each row of logits that several ranks have parts of, fp32 [rows]: the largest logit of this
// rank's part, the largest of all, the sum of exp(logit - largest), and the target's logit.
struct RowStatistics {
  float* own_max = nullptr;
  float* max = nullptr;
  float* sum = nullptr;
  float* target = nullptr;
};

// The operations on state between passes: sums and norms of gradients, updates. They need no matrix
// products (but for muon's), so a library without layers has them alone.
class StateKernels {
 public:
  virtual ~StateKernels() = default;
  // Sets the stream on which CUDA queues. The host ignores it.
  virtual void set_stream(void* native) = 0;
  // Sets `bytes` bytes to zero.
  virtual void zero(void* data, std::uint64_t bytes) = 0;

  // accumulator (fp32) = first ? grad : accumulator + grad; grad has grad_dtype.
  virtual void accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                          std::int64_t elems) = 0;
  // into = into + from, both of one dtype, summed in fp32. Adds the gradient of a tied use.
  virtual void fold(void* into, const void* from, DType dtype, std::int64_t elems) = 0;
  // partial[i] = fp64 sum of squares of block i in 16 lanes: element j goes to lane j % 16, and the
  // lanes add by halves (8, 4, 2, 1). Blocks are [begin, end) element ranges of grad. round_to:
  // act dtype to which each element of an fp32 grad is rounded first, to nearest even (kF32: none).
  struct Block {
    std::int64_t begin = 0, end = 0;
  };
  virtual void squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                                   std::span<const Block> blocks, double* partial) = 0;

  // Updates a chunk by a rule (kernels/optimizer.hpp), in place on master, moments and weight.
  // workspace: null if update_workspace_bytes is 0; only rules that need whole tensors use any.
  // InternalError: segments that leave the chunk or overlap, and parts of tensors for kPerTensor
  // rules.
  virtual std::uint64_t update_workspace_bytes(
      const OptimizerOptions& options, std::span<const ParameterSegment> segments) const = 0;
  virtual void update(const OptimizerOptions& options, const UpdateBuffers& buffers,
                      std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
                      void* workspace) = 0;
  // out = in, converted between act dtypes, to nearest even. weight_rounding: bf16 ties go away
  // from zero.
  virtual void cast(const void* in, DType in_dtype, void* out, DType out_dtype,
                    bool weight_rounding, std::int64_t elems) = 0;
};

class Kernels : public StateKernels {
 public:
  // Names everything that a result's bits depend on, such as the GEMM library and its instruction
  // set ("avx2-f32").
  virtual const char* arithmetic() const = 0;

  virtual std::uint64_t gemm_workspace_bytes(const GemmShape& shape) const = 0;
  virtual void gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                    void* workspace) = 0;

  // out[cols] = sum over rows of x[rows, cols].
  virtual void column_sum(const void* x, void* out, std::int64_t rows, std::int64_t cols,
                          DType dtype) = 0;

  // y = norm(x) * weight (+ bias); mean and rstd are fp32 [rows] (rms: mean is unused, may be
  // null).
  virtual void norm_forward(const NormShape& shape, const void* x, const void* weight,
                            const void* bias, void* y, float* mean, float* rstd) = 0;
  // dx = gradient of x (+ residual, elementwise, if not null: the gradient of the other branch).
  virtual void norm_backward_input(const NormShape& shape, const void* dy, const void* x,
                                   const void* weight, const float* mean, const float* rstd,
                                   const void* residual, void* dx) = 0;
  // dweight [cols], dbias [cols] (null for rms).
  virtual void norm_backward_weight(const NormShape& shape, const void* dy, const void* x,
                                    const float* mean, const float* rstd, void* dweight,
                                    void* dbias) = 0;

  // out = a + b, elementwise; may be in place.
  virtual void add(const void* a, const void* b, void* out, std::int64_t elems, DType dtype) = 0;

  // GELU, tanh approximation (GPT-2). Backward may be in place: dx may be dy.
  virtual void gelu_forward(const void* x, void* y, std::int64_t elems, DType dtype) = 0;
  virtual void gelu_backward(const void* dy, const void* x, void* dx, std::int64_t elems,
                             DType dtype) = 0;
  // x = the product (+ bias) and y = gelu(x); gelu may read x before it is rounded. Both are [m, n]
  // in the shape's output dtype, which is that of A and B. A device may fuse both into one call.
  virtual void gemm_gelu(const GemmShape& shape, const void* a, const void* b, const void* bias,
                         void* x, void* y, void* workspace) {
    gemm(shape, a, b, bias, x, workspace);
    gelu_forward(x, y, shape.m * shape.n, shape.output);
  }
  // Whether y of gemm_gelu is always gelu_forward(x) to the bit, in products of this dtype. If so,
  // y can be recomputed without the product.
  virtual bool gelu_reads_rounded(DType) const { return true; }
  // dx = gelu'(x) times the product; the product may be rounded in between.
  virtual void gemm_gelu_backward(const GemmShape& shape, const void* a, const void* b,
                                  const void* x, void* dx, void* workspace) {
    gemm(shape, a, b, nullptr, dx, workspace);
    gelu_backward(dx, x, dx, shape.m * shape.n, shape.output);
  }
  // x [rows, 2*cols] = gate | up; y [rows, cols] = silu(gate) * up; dx as x.
  virtual void swiglu_forward(const void* x, void* y, std::int64_t rows, std::int64_t cols,
                              DType dtype) = 0;
  virtual void swiglu_backward(const void* dy, const void* x, void* dx, std::int64_t rows,
                               std::int64_t cols, DType dtype) = 0;

  // Rotary embedding, half-split (Llama), in place on the q and k parts of qkv rows. A row's
  // position is first_position and its index in time. inverse: the transpose, for gradients.
  virtual void rope(const AttentionShape& shape, float base, bool inverse, void* qkv) = 0;

  virtual std::uint64_t attention_workspace_bytes(const AttentionShape& shape) const = 0;
  // out [batch, time, heads*head_dim]; lse, fp32 [batch, heads, time]: log-sum-exp of scaled
  // scores.
  virtual void attention_forward(const AttentionShape& shape, const void* qkv, void* out,
                                 float* lse, void* workspace) = 0;
  virtual void attention_backward(const AttentionShape& shape, const void* dout, const void* qkv,
                                  const void* out, const float* lse, void* dqkv,
                                  void* workspace) = 0;

  // out[r, :] = table[tokens[r] - range.first, :] + positions[r % time, :] (positions may be null).
  // The table has the tokens of the range; the row of any other token counts as zero.
  virtual void embedding_forward(const std::int32_t* tokens, TokenRange range, const void* table,
                                 const void* positions, void* out, std::int64_t rows,
                                 std::int64_t time, std::int64_t hidden, DType dtype) = 0;
  // Writes all of dtable [range.count, hidden] and dpositions [max_time, hidden] (may be null).
  // Sums are in row order.
  virtual std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows,
                                                           std::int64_t vocab) const = 0;
  virtual void embedding_backward(const std::int32_t* tokens, TokenRange range, const void* dout,
                                  void* dtable, void* dpositions, std::int64_t rows,
                                  std::int64_t time, std::int64_t max_time, std::int64_t hidden,
                                  DType dtype, void* workspace) = 0;

  virtual std::uint64_t head_workspace_bytes(const HeadShape& shape) const = 0;
  // loss_sum (one fp64): sum over rows of -log softmax(x w^T)[target], in row order. lse: fp32
  // [rows]. dx [rows, hidden] = loss_scale * d(loss_sum)/dx; null: not computed (evaluation).
  virtual void head_forward(const HeadShape& shape, const void* x, const void* w,
                            const std::int32_t* targets, float loss_scale, double* loss_sum,
                            float* lse, void* dx, void* workspace) = 0;
  // dw [vocab, hidden] = loss_scale * d(loss_sum)/dw, from lse, one slice of the vocabulary at a
  // time.
  virtual void head_backward_weight(const HeadShape& shape, const void* x, const void* w,
                                    const std::int32_t* targets, float loss_scale, const float* lse,
                                    void* dw, void* workspace) = 0;

  // Copies columns [from.first, from.first + cols) of a matrix to those of another from to.first
  // on. A backend without it throws InternalError; its device is refused before.
  struct Columns {
    std::int64_t first = 0, width = 0;  // width: of all columns of the matrix
  };
  virtual void copy_columns(const void* in, Columns from, void* out, Columns to, std::int64_t rows,
                            std::int64_t cols, DType dtype);

  // Attention in parts, whose order is the caller's. A backend without it throws InternalError.
  virtual std::uint64_t attention_part_workspace_bytes(const AttentionPart& part) const;
  // Merges the part into out, fp32 [queries, heads*head_dim], and lse; `first` writes them instead.
  // After all parts of a row they are attention_forward()'s but for rounding.
  virtual void attention_part_forward(const AttentionPart& part, const void* qkv, const void* kv,
                                      bool first, float* out, float* lse, void* workspace);
  // Adds the part's terms to dq, fp32 [queries, heads*head_dim], and dkv, fp32 rows as kv has. out,
  // of the part's dtype, and lse are those after all parts.
  virtual void attention_part_backward(const AttentionPart& part, const void* dout, const void* qkv,
                                       const void* kv, const void* out, const float* lse, float* dq,
                                       float* dkv, void* workspace);

  // The head of ranks that have runs of tokens each, in steps between which the ranks combine the
  // statistics. A backend without them throws InternalError; its device is refused before.
  //
  // own_max = max = the largest logit of the row's part, sum = that of its exponentials against it,
  // target = the target's logit, or 0 where another rank has it.
  virtual void head_statistics(const HeadShape& shape, const void* x, const void* w,
                               const std::int32_t* targets, const RowStatistics& statistics,
                               void* workspace);
  // sum *= exp(own_max - max), `max` being that of all ranks.
  virtual void head_rescale(std::int64_t rows, const RowStatistics& statistics);
  // loss_sum and lse as head_forward(), from the statistics of whole rows.
  virtual void head_loss(std::int64_t rows, const RowStatistics& statistics, double* loss_sum,
                         float* lse);
  // dx = the part of head_forward()'s dx that these rows of w bring.
  virtual void head_input_gradient(const HeadShape& shape, const void* x, const void* w,
                                   const std::int32_t* targets, float loss_scale, const float* lse,
                                   void* dx, void* workspace);
};

// threads: TBB workers including the caller; 0: all cores. bf16_gemm: kAuto uses oneDNN's bf16
// matmul if the CPU has native bf16 instructions, and otherwise converts panels to fp32.
enum class Bf16Gemm { kAuto, kNative, kViaF32 };
struct HostKernelOptions {
  int threads = 0;
  Bf16Gemm bf16_gemm = Bf16Gemm::kAuto;
};
std::unique_ptr<Kernels> make_host_kernels(const HostKernelOptions& options);
// The operations on state alone; muon is refused (InputError).
std::unique_ptr<StateKernels> make_host_state_kernels(int threads);

}  // namespace sluice::kernels
