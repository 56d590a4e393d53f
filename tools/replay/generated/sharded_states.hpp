// ZeRO-3: each rank keeps a shard of every unit. A whole unit exists only while it is used.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/replay/generated/model_states.hpp"

namespace sluice::replay::generated {

struct ShardOptions {
  std::uint64_t ranks = 8;
  std::uint64_t element_bytes = 2;
  std::uint64_t prefetch_units = 1;
  // Each parameter is gathered into a buffer of its own (DeepSpeed). Otherwise a unit is gathered
  // into one buffer (FSDP).
  bool gathers_parameters = false;
  // Gradients are copied to a bucket of this size, which is reduced when it is full. With 0 they
  // are reduced unit by unit.
  std::uint64_t bucket_elements = 0;
  bool offloads_optimizer = true;
  std::uint64_t completion_delay = 12;  // operations until another stream's use has ended
};

class ShardedStates : public UnitStates {
 public:
  ShardedStates(TraceRecorder& recorder, std::vector<std::vector<Parameter>> units,
                const ShardOptions& options);

  void allocate_weights() override;
  void before_forward(std::size_t unit) override;
  void after_forward(std::size_t unit) override;
  void before_backward(std::size_t unit) override;
  void after_backward(std::size_t unit) override;
  void optimizer_step(std::uint32_t iteration) override;
  void accept(std::size_t unit, std::uint32_t parameter, BufferId gradient) override;

 private:
  struct Unit {
    std::vector<Parameter> parameters;
    std::uint64_t elements = 0;
    std::vector<BufferId> gathered;
    std::vector<BufferId> gradients;  // by parameter, until they are reduced
    BufferId gradient_shard = kNoBuffer;
    bool has_moments = false;
  };
  std::uint64_t shard_elements(const Unit& unit) const;
  void gather(Unit& unit);
  void reshard(Unit& unit);
  void reduce_unit(Unit& unit);
  void reduce_bucket();
  void keep_shard(BufferId& kept, std::uint64_t elements);
  void update_on_device();
  void update_on_host();

  TraceRecorder& recorder_;
  ShardOptions options_;
  std::vector<Unit> units_;
  BufferId bucket_ = kNoBuffer;
  std::uint64_t bucket_used_elements_ = 0;
  std::vector<BufferId> bucket_shards_;
};

}  // namespace sluice::replay::generated
