// The allocations of a transformer's forward and backward passes, operation by operation.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/replay/generated/trace_recorder.hpp"
#include "tools/replay/generated/transformer_shape.hpp"

namespace sluice::replay::generated {

// Receives each gradient of a weight when backward makes it. model_units numbers the units.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void accept(std::size_t unit, std::uint32_t parameter, BufferId gradient) = 0;
};

// The tensors that a norm saves beside its input.
struct SavedNorm {
  BufferId output = kNoBuffer;
  BufferId statistics = kNoBuffer;
  BufferId upcast = kNoBuffer;  // not fused: the input in 32 bits
  BufferId normalised = kNoBuffer;
};

struct SavedAttention {
  SavedNorm norm;
  std::vector<BufferId> qkv;  // q, k, v, or the fused one
  BufferId output = kNoBuffer;
  BufferId log_sum_exp = kNoBuffer;
  BufferId rng_state = kNoBuffer;
  BufferId dropout_mask = kNoBuffer;
};

struct SavedMlp {
  SavedNorm norm;
  BufferId gate = kNoBuffer;  // or the one before GELU
  BufferId up = kNoBuffer;
  BufferId activated = kNoBuffer;
  BufferId product = kNoBuffer;
  BufferId dropout_mask = kNoBuffer;
};

struct SavedBlock {
  BufferId input = kNoBuffer;   // the residual stream
  BufferId middle = kNoBuffer;  // between attention and MLP
  SavedAttention attention;
  SavedMlp mlp;
};

struct SavedHead {
  BufferId input = kNoBuffer;
  SavedNorm norm;
  BufferId logits = kNoBuffer;
  BufferId logits32 = kNoBuffer;
  BufferId log_probabilities = kNoBuffer;
  BufferId loss = kNoBuffer;
};

// The inputs of a model, which live from forward to backward.
struct PassInputs {
  BufferId ids = kNoBuffer;
  BufferId labels = kNoBuffer;
  std::vector<BufferId> positions;  // cos, sin, or position ids
};

class TransformerPass {
 public:
  // weight_copies is autocast: 32-bit weights are copied to 16 bits, and a copy lives until its
  // gradient is computed.
  TransformerPass(TraceRecorder& recorder, const TransformerShape& shape, GradientSink& sink,
                  bool weight_copies = false);

  void set_batch(const Batch& batch) { batch_ = batch; }
  const Batch& batch() const { return batch_; }

  PassInputs begin_inputs();
  void end_inputs(PassInputs& inputs);
  // Returns the residual stream.
  BufferId forward_embedding(PassInputs& inputs);
  void backward_embedding(BufferId gradient);

  // Both take the residual stream and return the next. `saved` owns the input unless it was freed.
  BufferId forward_block(std::size_t unit, BufferId input, SavedBlock& saved);
  BufferId backward_block(std::size_t unit, BufferId gradient, SavedBlock& saved);

  // The parts of a block, for families with another MLP (experts).
  BufferId forward_attention(std::size_t unit, BufferId input, SavedBlock& saved);
  BufferId backward_attention(std::size_t unit, BufferId gradient, SavedBlock& saved);
  void forward_norm(SavedNorm& saved, std::uint64_t rows, std::string_view name);
  BufferId backward_norm(std::size_t unit, std::uint32_t parameter, SavedNorm& saved,
                         BufferId gradient, std::uint64_t rows, std::string_view name);
  // Consumes `branch` and returns its sum with the residual stream.
  BufferId add_residual(BufferId branch);
  BufferId linear(std::size_t unit, std::uint32_t parameter, std::uint64_t rows, std::uint64_t in,
                  std::uint64_t out, std::string_view name);
  // Gives the gradients of weight and bias to the sink, and returns that of the input. Frees
  // `gradient`.
  BufferId linear_backward(std::size_t unit, std::uint32_t parameter, std::uint64_t rows,
                           std::uint64_t in, std::uint64_t out, BufferId& gradient,
                           std::string_view name);
  // Adds two gradients of the same tensor into the first.
  void accumulate(BufferId& into, BufferId other);

  // `unit` is the last one. Computes the loss.
  void forward_head(std::size_t unit, BufferId input, SavedHead& saved);
  BufferId backward_head(std::size_t unit, SavedHead& saved);

  // Frees the remaining copies of weights (autocast).
  void end_pass();

 private:
  BufferId activation(std::uint64_t bytes, std::string_view name);
  BufferId workspace(std::uint64_t bytes, std::string_view name);
  // An operand in 8 bits, with its scale; empty if products are not scaled.
  std::vector<BufferId> scaled_operand(std::uint64_t elements);
  void free_all(std::vector<BufferId>& ids);
  void gradient_of(std::size_t unit, std::uint32_t parameter, std::uint64_t elements,
                   std::string_view name);
  void rotate(BufferId& id, std::uint64_t width, std::string_view name);
  BufferId dropout(BufferId input, BufferId& mask, std::string_view name);
  BufferId forward_mlp(std::size_t unit, SavedMlp& saved);
  BufferId backward_mlp(std::size_t unit, SavedMlp& saved);
  void attend(SavedAttention& saved);
  std::vector<BufferId> backward_attend(SavedAttention& saved, BufferId& gradient);
  void free_norm(SavedNorm& saved);
  std::uint32_t head_weight() const { return shape_.is_gated ? 1 : 2; }  // after the norm's bias

  TraceRecorder& recorder_;
  TransformerShape shape_;
  GradientSink& sink_;
  BlockLayout layout_;
  bool weight_copies_;
  std::map<std::pair<std::size_t, std::uint32_t>, BufferId> copies_;  // by unit and parameter
  Batch batch_;
};

}  // namespace sluice::replay::generated
