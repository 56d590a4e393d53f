#include "tools/bench/offloaded_step.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/config/shapes.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/optimizer.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

constexpr const char* kConfig = R"(
[model]
family = "llama"
heads = 32
vocab = 256
max_seq = 8
[data]
paths = ["."]
[train]
seq = 8
micro_batch = 1
accumulate = 1
precision = "bf16"
[optimizer]
name = "adamw"
placement = "next_forward"
[memory]
backend = "host"
device = "64GiB"
pinned = "64GiB"
storage = "1TiB"
prefetch = 1
place.weight = "storage"
place.gradient = "pinned"
place.optimizer = "storage"
[recompute]
policy = "none"
)";

config::Config config_of(const OffloadedStepShape& shape, const std::string& states,
                         const std::string& moments, int threads, const std::string& directory) {
  const std::array<std::string, 5> overrides{
      "model.layers=" + std::to_string(shape.layers),
      "model.hidden=" + std::to_string(shape.hidden), "model.ffn=" + std::to_string(shape.ffn),
      "optimizer.states=" + states, "optimizer.moments=" + moments};
  config::Config config = config::parse_config(kConfig, "bench step", overrides);
  config.memory.storage_paths = {directory};
  config.train.threads = threads > 0 ? threads : kernels::host::Parallel::default_threads();
  return config;
}

// The budgets above are wide; the benchmark checks the room on disk itself.
train::Prepared prepared_for(const config::Config& config) {
  train::Prepared prepared =
      train::prepare_with(config, planner::load_profile_or_default(planner::default_profile_path()),
                          train::make_backend(config));
  if (prepared.refusal() != nullptr) {
    throw InputError("bench step: " + prepared.refusal()->sentence());
  }
  return prepared;
}

// The elements of the piece that an update works on.
std::uint64_t elems_of_update(const schedule::Schedule& schedule,
                              const schedule::Instruction& update) {
  for (const schedule::Use& use : update.reads) {
    const schedule::Buffer& buffer = schedule.buffers[use.buffer];
    if (buffer.role == schedule::BufferRole::kState) return schedule::elems_of(buffer, use).elems();
  }
  throw InternalError("an update reads no state");
}

// The memory of the update alone: the model's passes are never run.
runtime::MemoryNeed need_of(const planner::Plan& plan) {
  const std::array<const schedule::Schedule*, 1> schedules{
      &plan.schedules[schedule::StepKind::kDrain]};
  return runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
}

// A bf16 of either sign, 2^-7 to 2^-6.
std::uint16_t next_small(std::uint32_t& state) {
  constexpr std::uint16_t kExponent = 0x3c00;  // 2^-7
  state = state * 1664525u + 1013904223u;      // Numerical Recipes' generator
  return static_cast<std::uint16_t>(kExponent | (state >> 16 & 0x80ff));
}

}  // namespace

class OffloadedStep::Runner final : public runtime::OperationRunner {
 public:
  explicit Runner(runtime::ModelRunner& inner) : inner_(inner) {}
  void set_updates(bool updates) { updates_ = updates; }
  void run_on_device(const runtime::Program& program, const schedule::Instruction& instruction,
                     device::Stream& stream) override {
    inner_.run_on_device(program, instruction, stream);
  }
  void run_on_host(const runtime::Program& program, const schedule::Instruction& instruction,
                   const kernels::HostUpdate& how) override {
    if (updates_) return inner_.run_on_host(program, instruction, how);
    // Reads are still verified, and writes are still tagged.
    const auto elems = static_cast<std::int64_t>(elems_of_update(program.schedule(), instruction));
    how.guard->before(0, elems);
    how.guard->after(0, elems);
  }

 private:
  runtime::ModelRunner& inner_;
  bool updates_ = true;  // changes between passes only
};

OffloadedStep::OffloadedStep(const OffloadedStepShape& shape, const std::string& states,
                             const std::string& moments, int threads, const std::string& directory)
    : prepared_(prepared_for(config_of(shape, states, moments, threads, directory))),
      alone_(collectives::make_single_communicator()),
      parameters_(config::parameter_table(prepared_.config, prepared_.model)),
      device_(
          prepared_.backend.make_device(std::max<std::uint64_t>(plan().peak_bytes[0], kPageBytes))),
      ledger_({prepared_.config.memory.device_bytes, prepared_.config.memory.pinned_bytes,
               prepared_.config.memory.storage_bytes}),
      storage_(offload::make_storage_engine("auto", offload::StorageOptions{})),
      memory_(*device_, ledger_, storage_.get(), prepared_.config.memory.storage_paths,
              need_of(plan()), make_run_id(), /*kept=*/true),
      program_(drain(), memory_),
      model_runner_(prepared_.model, config::batch_shape(prepared_.config),
                    plan().options.microbatches, parameters_, *prepared_.backend.device_kernels,
                    *prepared_.backend.host_kernels, {*alone_, *alone_, *alone_}),
      runner_(std::make_unique<Runner>(model_runner_)),
      executor_(*device_, memory_.storage(), *runner_),
      store_(*device_, memory_, drain(),
             {prepared_.plan()->view, prepared_.plan()->pipeline, *alone_}) {
  executor_.prepare(program_);
  checkpoint::ModelState(prepared_.model, parameters_, store_)
      .initialize(prepared_.config.train.seed);
  fill_gradients();
  accept_clip();
}

OffloadedStep::~OffloadedStep() = default;

std::string OffloadedStep::weights_hash() {
  return checkpoint::ModelState(prepared_.model, parameters_, store_).weights_hash();
}

std::uint64_t OffloadedStep::elems() const {
  std::uint64_t elems = 0;
  for (const model::Unit& unit : prepared_.model.units()) elems += unit.layer->layout().elems();
  return elems;
}

std::uint64_t OffloadedStep::bytes_of_step() const {
  const schedule::LinkBytes bytes = schedule::link_bytes(drain());
  return bytes.storage_read + bytes.storage_write;
}

std::uint64_t OffloadedStep::piece_elems() const {
  const schedule::StepOptions& options = plan().options;
  return options.update_piece_elems > 0 ? options.update_piece_elems : options.piece_elems;
}

std::uint64_t OffloadedStep::staging_bytes() const {
  return drain().pinned_arena_bytes - runtime::persistent_pinned_bytes(drain());
}

void OffloadedStep::refill_state() {
  // Any two of these numbers also form an fp32 of this exponent, and any byte is an 8-bit code.
  std::vector<std::uint16_t> numbers(runtime::StateStore::kWindowElems * sizeof(float) / 2);
  std::uint32_t state = 1;
  for (std::uint16_t& number : numbers) number = next_small(state) & 0x7fff;
  for (const schedule::Buffer& buffer : drain().buffers) {
    if (!buffer.persistent || buffer.role != schedule::BufferRole::kState ||
        buffer.tier != Tier::kStorage) {
      continue;
    }
    const std::array<StateKind, 1> kinds{buffer.kind};
    const auto elems =
        prepared_.model.units()[static_cast<std::size_t>(buffer.unit)].layer->layout().elems();
    store_.visit(kinds, buffer.unit, 0, elems, runtime::StateStore::Access::kWrite,
                 [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                   std::memcpy(data[0], numbers.data(), bytes_of(buffer.dtype, end - begin));
                 });
  }
}

// Fills in numbers of either sign near 2^-7, as gradients are.
void OffloadedStep::fill_gradients() {
  const std::array<StateKind, 1> kinds{StateKind::kGradient};
  std::uint32_t state = 1;
  for (std::size_t unit = 0; unit < prepared_.model.units().size(); ++unit) {
    store_.visit(kinds, static_cast<std::int32_t>(unit), 0,
                 prepared_.model.units()[unit].layer->layout().elems(),
                 runtime::StateStore::Access::kWrite,
                 [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                   auto* gradient = reinterpret_cast<std::uint16_t*>(data[0]);
                   for (std::uint64_t i = 0; i < end - begin; ++i) gradient[i] = next_small(state);
                 });
  }
}

// Sets the clip factor as after a step with a norm below the clip.
void OffloadedStep::accept_clip() {
  for (const schedule::Buffer& buffer : drain().buffers) {
    if (buffer.role != schedule::BufferRole::kScalar || !buffer.persistent) continue;
    auto* clip = reinterpret_cast<double*>(memory_.address(buffer));
    clip[0] = 1.0;  // the norm
    clip[1] = 1.0;  // the factor
    return;
  }
  throw InternalError("the update reads no clip factor");
}

template <typename Work>
OffloadedStep::Cost OffloadedStep::cost_of(Work work) {
  runtime::StepScalars scalars;
  scalars.update.lr = static_cast<float>(prepared_.config.optimizer.lr);
  scalars.update.step = ++steps_;
  model_runner_.set_scalars(scalars);
  const offload::StorageCounters before = storage_->counters();
  const double tags_before = memory_.storage().counters().hash_seconds;
  const double cpu_before = process_cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  work();
  Cost cost;
  cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  cost.cpu_seconds = process_cpu_seconds() - cpu_before;
  cost.tag_seconds = memory_.storage().counters().hash_seconds - tags_before;
  const offload::StorageCounters after = storage_->counters();
  cost.read_bytes = after.read_bytes - before.read_bytes;
  cost.write_bytes = after.write_bytes - before.write_bytes;
  return cost;
}

OffloadedStep::Cost OffloadedStep::run_program(bool updates) {
  runner_->set_updates(updates);
  return cost_of([this] { executor_.run(program_); });
}

OffloadedStep::Cost OffloadedStep::run() {
  return run_program(true);
}

OffloadedStep::Cost OffloadedStep::run_without_update() {
  return run_program(false);
}

OffloadedStep::Cost OffloadedStep::run_update_alone() {
  return cost_of([this] {
    for (const schedule::InstructionId id : program_.lane(schedule::Lane::kOptimizer)) {
      const schedule::Instruction& instruction = drain().instructions[id];
      if (instruction.op != schedule::Op::kRelease)
        model_runner_.run_on_host(program_, instruction);
    }
  });
}

}  // namespace sluice::bench
