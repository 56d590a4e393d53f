// Weights, gradients and optimizer states that stay in device memory, and the optimizer's step.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/replay/generated/draws.hpp"
#include "tools/replay/generated/transformer_pass.hpp"

namespace sluice::replay::generated {

enum class OptimizerKind : std::uint8_t {
  kFused,      // no temporaries
  kForeach,    // lists of temporaries, each as large as all parameters
  kPerTensor,  // temporaries of one parameter at a time
};

struct StateOptions {
  std::uint64_t weight_bytes = 2;    // of an element
  std::uint64_t gradient_bytes = 2;  // of an element
  bool has_master = true;            // a 32-bit copy of each weight, with the states
  bool has_buckets = false;          // DDP: gradients are also copied to buckets
  std::uint64_t shards = 1;          // optimizer states are split over as many ranks
  OptimizerKind optimizer = OptimizerKind::kFused;
};

// The states of a model, and their allocations while its units run.
class UnitStates : public GradientSink {
 public:
  virtual void allocate_weights() = 0;
  virtual void before_forward(std::size_t /*unit*/) {}
  virtual void after_forward(std::size_t /*unit*/) {}
  virtual void before_backward(std::size_t /*unit*/) {}
  virtual void after_backward(std::size_t /*unit*/) {}
  // Runs after the last backward of `iteration`: norms, clipping and update. Frees gradients.
  virtual void optimizer_step(std::uint32_t iteration) = 0;
};

// All states are in device memory.
class ModelStates : public UnitStates {
 public:
  ModelStates(TraceRecorder& recorder, std::vector<std::vector<Parameter>> units,
              const StateOptions& options);

  // Allocates weights. Gradients come with the first backward, states with the first step.
  void allocate_weights() override;
  // The first gradient of an iteration stays; later ones are added to it and freed.
  void accept(std::size_t unit, std::uint32_t parameter, BufferId gradient) override;
  void optimizer_step(std::uint32_t iteration) override;

 private:
  struct State {
    BufferId gradient = kNoBuffer;
    bool has_moments = false;
  };
  // Calls f with the unit and index of each parameter.
  template <typename F>
  void for_each(F&& f);
  void make_buckets(std::uint64_t first_bytes);
  void clip_gradients();
  void make_moments();
  void update();

  TraceRecorder& recorder_;
  std::vector<std::vector<Parameter>> units_;
  std::vector<std::vector<State>> states_;
  std::vector<BufferId> buckets_;
  StateOptions options_;
};

}  // namespace sluice::replay::generated
