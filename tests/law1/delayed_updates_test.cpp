// Pipelines whose updates are delayed (PipeDream with stashed weights, with vertical sync, and 2BW)
// beside a plain loop of each rule: one model in plain memory, and a list of the weights after every
// update. Losses and final weights are equal to the bit.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/trace.hpp"
#include "engine/checkpoint/safetensors.hpp"
#include "tests/support/pipeline_training.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/whole_model.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kUpdates = 20;
constexpr std::int64_t kLayers = 2;

struct DelayedCase {
  std::string rule = "pipedream";
  int pipeline = 2;
  int data = 1;
  int zero = 0;
  int microbatches = 1;  // of each pipeline and update
  int updates = 20;      // of each schedule
  Overrides settings = {};
};

Overrides delayed_model(const DelayedCase& at) {
  return Overrides{"model.family=llama",
                   "model.tie_embeddings=false",
                   "model.layers=" + std::to_string(kLayers),
                   "model.hidden=32",
                   "model.heads=2",
                   "model.vocab=64",
                   "train.seq=8",
                   "train.micro_batch=1",
                   "train.steps=20",
                   "train.precision=fp32",
                   "train.clip=0",
                   "train.order=microbatch",
                   "optimizer.placement=in_backward",
                   "optimizer.carried_units=0",
                   "train.accumulate=" + std::to_string(at.microbatches * at.data)} +
         at.settings;
}

std::vector<schedule::UnitRange> even_stages(int stages) {
  std::vector<schedule::UnitRange> ranges;
  const auto units = static_cast<std::int32_t>(kLayers) + 2;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    ranges.push_back({units * stage / stages, units * (stage + 1) / stages});
  }
  return ranges;
}

// The update that stage `stage` of `stages` lacks least when micro-batch k of a schedule begins there,
// as the papers write it; one micro-batch in each update but for 2BW.
std::int64_t version_by_rule(const DelayedCase& at, std::int64_t stage, std::int64_t k) {
  const std::int64_t behind = at.rule == "pipedream" ? at.pipeline - stage - 1 : at.pipeline - 1;
  const std::int64_t of = at.rule == "2bw" ? k / at.microbatches - 1 : k - behind;
  return std::max<std::int64_t>(of, 0);
}

// The loop: weights after every update of the schedule, and one micro-batch after the other.
class PlainLoop {
 public:
  PlainLoop(const config::Config& config, const DelayedCase& at, const std::string& initial)
      : config_(config),
        at_(at),
        whole_(config::model_shape(config), config.train.micro_batch, config.train.seq,
               config.train.accumulate),
        table_(config::parameter_table(config, whole_.model())) {
    const checkpoint::SafetensorsReader reader(initial);
    for (std::size_t unit = 0; unit < units(); ++unit) {
      for (const model::PlacedTensor& tensor : layout(unit).tensors()) {
        float* to = &whole_.weight(unit, tensor.first_elem);
        reader.read(*reader.find(tensor.spec.name), 0,
                    std::as_writable_bytes(std::span(to, tensor.spec.elems())));
      }
      newest_.push_back(weights(unit));
      moments_.push_back({Floats(layout(unit).elems() * 4), Floats(layout(unit).elems() * 4)});
    }
  }

  void run() {
    for (std::int64_t step = 0; step < kUpdates; step += at_.updates) {
      versions_ = {newest_};
      for (std::int64_t update = 0; update < at_.updates; ++update) one_update(step, update);
    }
  }
  const std::vector<std::uint64_t>& losses() const { return losses_; }
  bool has_weights(const std::string& path) {
    const checkpoint::SafetensorsReader reader(path);
    bool same = true;
    for (std::size_t unit = 0; unit < units(); ++unit) {
      for (const model::PlacedTensor& tensor : layout(unit).tensors()) {
        std::vector<float> found(tensor.spec.elems());
        reader.read(*reader.find(tensor.spec.name), 0, std::as_writable_bytes(std::span(found)));
        const auto begin = newest_[unit].begin() + static_cast<std::ptrdiff_t>(tensor.first_elem);
        same = same && std::equal(found.begin(), found.end(), begin, [](float a, float b) {
                 return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
               });
      }
    }
    return same;
  }

 private:
  using Floats = AlignedFloats;
  std::size_t units() const { return whole_.model().units().size(); }
  const model::UnitLayout& layout(std::size_t unit) const {
    return whole_.model().units()[unit].layer->layout();
  }
  std::vector<float> weights(std::size_t unit) {
    const auto* begin = reinterpret_cast<const float*>(whole_.weights(unit));
    return {begin, begin + layout(unit).elems()};
  }
  std::int64_t stage_of(std::size_t unit) const {
    std::int64_t stage = 0;
    for (const schedule::UnitRange& range : even_stages(at_.pipeline)) {
      if (static_cast<std::int32_t>(unit) >= range.end) ++stage;
    }
    return stage;
  }
  void load(std::size_t unit, const std::vector<float>& from) {
    std::copy(from.begin(), from.end(), reinterpret_cast<float*>(whole_.weights(unit)));
  }

  void one_update(std::int64_t first_step, std::int64_t update) {
    const std::int64_t step = first_step + update;
    std::vector<std::vector<float>> sums(units());
    double loss = 0;
    for (std::int64_t mb = 0; mb < config_.train.accumulate; ++mb) {
      // Data-parallel ranks take micro-batches in turn, each a pipeline of its own.
      const std::int64_t k = (update * config_.train.accumulate + mb) / at_.data;
      for (std::size_t unit = 0; unit < units(); ++unit) {
        const auto version = version_by_rule(at_, stage_of(unit), k);
        load(unit, versions_.at(static_cast<std::size_t>(version))[unit]);
      }
      for (std::size_t i = 0; i < whole_.rows(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        whole_.tokens()[i] = token_of(step, mb, row, config_.model.vocab);
        whole_.targets()[i] = token_of(step, mb, row + 1, config_.model.vocab);
      }
      loss += whole_.loss() * static_cast<double>(whole_.rows());
      whole_.backward();
      for (std::size_t unit = 0; unit < units(); ++unit) add_gradient(unit, sums[unit]);
    }
    losses_.push_back(std::bit_cast<std::uint64_t>(
        loss /
        static_cast<double>(static_cast<std::int64_t>(whole_.rows()) * config_.train.accumulate)));
    for (std::size_t unit = 0; unit < units(); ++unit) apply(unit, sums[unit], step);
    versions_.push_back(newest_);
  }

  void add_gradient(std::size_t unit, std::vector<float>& sum) {
    const auto* gradient = reinterpret_cast<const float*>(whole_.gradients(unit));
    if (sum.empty()) return sum.assign(gradient, gradient + layout(unit).elems());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }

  void apply(std::size_t unit, std::vector<float>& gradient, std::int64_t step) {
    load(unit, newest_[unit]);
    kernels::UpdateBuffers buffers;
    std::copy(gradient.begin(), gradient.end(), reinterpret_cast<float*>(whole_.gradients(unit)));
    buffers.grad = whole_.gradients(unit);
    buffers.grad_dtype = buffers.round_grad_to = DType::kF32;
    buffers.weight = whole_.weights(unit);
    const auto moment = [&](StateKind kind, std::size_t at) {
      const bool kept =
          kernels::state_layout(table_.options(unit), kind).extent != kernels::StateExtent::kAbsent;
      return kept ? moments_[unit][at].bytes() : nullptr;
    };
    buffers.moment1 = moment(StateKind::kMoment1, 0);
    buffers.moment2 = moment(StateKind::kMoment2, 1);
    buffers.elems = static_cast<std::int64_t>(layout(unit).elems());
    kernels::UpdateScalars scalars;
    scalars.lr = static_cast<float>(learning_rate(step, at_.updates));
    scalars.step = step + 1;
    scalars.grad_scale = 1.0f;
    whole_.kernels().update(table_.options(unit), buffers,
                            table_.segments(unit, 0, layout(unit).elems()), scalars, nullptr);
    newest_[unit] = weights(unit);
  }

  const config::Config& config_;
  const DelayedCase& at_;
  WholeModel whole_;
  model::ParameterTable table_;
  std::vector<std::vector<float>> newest_;                 // by unit
  std::vector<std::vector<std::vector<float>>> versions_;  // of the schedule, then by unit
  std::vector<std::array<Floats, 2>> moments_;             // by unit
  std::vector<std::uint64_t> losses_;
};

// Transient weights that are no windows of fetches have the shape and the tier of their home.
std::int32_t most_places(const schedule::Schedule& list, std::int32_t unit) {
  std::int32_t live = 1, most = 1;  // the home
  std::set<schedule::BufferId> born;
  for (const schedule::Instruction& instruction : list.instructions) {
    for (const schedule::Use& use : instruction.writes) {
      const schedule::Buffer& buffer = list.buffers[use.buffer];
      if (buffer.unit != unit || buffer.kind != StateKind::kWeight || buffer.persistent) continue;
      if (born.insert(use.buffer).second) most = std::max(most, ++live);
    }
    if (instruction.op != schedule::Op::kRelease) continue;
    for (const schedule::Use& use : instruction.reads) live -= born.contains(use.buffer) ? 1 : 0;
  }
  return most;
}

config::Config config_of(const TrainingBench& bench, const DelayedCase& at) {
  return bench.config(
      "run", delayed_model(at) + Overrides{"parallel.data=" + std::to_string(at.data),
                                           "parallel.zero=" + std::to_string(at.zero),
                                           "parallel.pipeline=" + std::to_string(at.pipeline),
                                           "parallel.schedule=" + at.rule,
                                           "parallel.updates=" + std::to_string(at.updates)});
}

// Plans the whole world, and counts in the list of each stage the places of the unit that has most: an
// embedding's weights are not read on the way back.
std::vector<std::int32_t> most_places_of_stages(const DelayedCase& at) {
  const TrainingBench bench;
  DelayedCase on_device = at;
  on_device.settings = on_device.settings + places("device", "device", "device");
  const config::Config config = config_of(bench, on_device);
  const model::Model model(config::model_shape(config));
  const train::Backend backend = one_threaded_backend(config);
  const auto plan =
      planner::make_plan(config, model, *backend.device_kernels, {}, backend.host_kernels.get());
  const auto& first = std::get<planner::Plan>(plan);
  std::vector<std::int32_t> most(first.pipeline.units.size());
  for (std::size_t stage = 0; stage < most.size(); ++stage) {
    const planner::Plan own =
        planner::plan_rank(config, model, *backend.device_kernels, {}, first.options,
                           static_cast<std::int32_t>(stage), backend.host_kernels.get());
    const schedule::UnitRange& units = first.pipeline.units[stage];
    for (std::int32_t unit = units.begin; unit < units.end; ++unit) {
      most[stage] = std::max(most[stage], most_places(own.training(), unit));
    }
  }
  return most;
}

// The most versions of the unit's weights that are needed at once, by the measured times of its
// updates and passes. Behind each update that is the new version, and all that passes still to end
// read.
std::int32_t most_live_in_run(const TraceRecorder& trace, const DelayedCase& at,
                              std::int32_t unit) {
  std::vector<std::int64_t> updates_ns;
  std::map<std::int64_t, std::int64_t> ends_ns;  // of backward passes, by micro-batch
  for (const TraceSpan& span : trace.spans()) {
    if (span.unit != unit) continue;
    if (trace.name_of(span.name) == "OptimizerStep") updates_ns.push_back(span.end_ns);
    if (trace.name_of(span.name) == "BackwardWeight") ends_ns[span.microbatch] = span.end_ns;
  }
  std::sort(updates_ns.begin(), updates_ns.end());
  std::size_t most = 0;
  for (std::size_t i = 0; i < updates_ns.size(); ++i) {
    const auto made = static_cast<std::int64_t>(i) + 1;
    std::set<std::int64_t> live{made};
    for (const auto& [microbatch, end_ns] : ends_ns) {
      const std::int64_t read = version_by_rule(at, unit, microbatch);  // a unit in each stage
      if (end_ns > updates_ns[i] && read < made) live.insert(read);
    }
    most = std::max(most, live.size());
  }
  return static_cast<std::int32_t>(most);
}

void expect_plain_loop(const DelayedCase& at) {
  SCOPED_TRACE(at.rule + ", " + std::to_string(at.pipeline) + " stages, " +
               std::to_string(at.data) + " data ranks, ZeRO " + std::to_string(at.zero) + ", " +
               std::to_string(at.microbatches) + " micro-batches, " + std::to_string(at.updates) +
               " updates, " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  const config::Config alone = bench.config("run", delayed_model(at));
  PlannedSession planned(alone);
  const TempDirectory directory;
  const std::string initial = directory.file("initial.safetensors");
  const std::string trained = directory.file("trained.safetensors");
  planned.session().state().export_weights(initial);
  PlainLoop loop(alone, at, initial);
  loop.run();

  schedule::StepOptions options = planned.plan().options;
  options.stages = even_stages(at.pipeline);
  options.exchange_lag = 0;
  cut_segments(options.recompute, options.stages);
  const config::Config config = config_of(bench, at);
  const RanksRun run = train_on_ranks(config, options, kUpdates, {}, -1, {}, [&](Session& session) {
    session.state().export_weights(trained);
  });
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank.losses, loop.losses());
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
  EXPECT_TRUE(loop.has_weights(trained));
}

TEST(DelayedUpdates, StashedWeightsEqualAPlainLoop) {
  expect_plain_loop({.pipeline = 2});
  expect_plain_loop({.pipeline = 3, .settings = {"optimizer.name=lion"}});
  expect_plain_loop({.pipeline = 4, .updates = 5});
}

TEST(DelayedUpdates, VerticalSyncEqualsAPlainLoop) {
  expect_plain_loop({.rule = "pipedream-vsync", .pipeline = 2, .updates = 10});
  expect_plain_loop({.rule = "pipedream-vsync", .pipeline = 4});
}

TEST(DelayedUpdates, DoubleBufferedWeightsEqualAPlainLoop) {
  expect_plain_loop({.rule = "2bw", .pipeline = 2, .microbatches = 2});
  expect_plain_loop({.rule = "2bw", .pipeline = 3, .microbatches = 4, .updates = 10});
}

TEST(DelayedUpdates, VersionsMayLieInAnyTier) {
  for (const Overrides& where :
       {places("pinned", "pinned", "pinned"), places("storage", "storage", "storage"),
        places("pinned", "device", "storage"), places("device", "storage", "pinned")}) {
    expect_plain_loop({.pipeline = 3, .settings = where});
    expect_plain_loop({.rule = "2bw", .pipeline = 2, .microbatches = 3, .settings = where});
  }
}

TEST(DelayedUpdates, DataRanksAndEveryZeroStageEqualAPlainLoop) {
  for (const int zero : {0, 1, 2, 3}) {
    expect_plain_loop({.rule = zero % 2 == 0 ? "2bw" : "pipedream-vsync",
                       .data = 2,
                       .zero = zero,
                       .microbatches = zero % 2 == 0 ? 2 : 1,
                       .updates = 10});
  }
}

std::int32_t versions_by_rule(const DelayedCase& at, std::int32_t stage) {
  if (at.rule == "2bw") return 2;
  return at.rule == "pipedream" ? at.pipeline - stage : at.pipeline;
}

TEST(DelayedUpdates, ARunNeedsAsManyVersionsAsTheRuleSays) {
  for (const DelayedCase& at :
       {DelayedCase{.pipeline = 4}, DelayedCase{.rule = "pipedream-vsync", .pipeline = 4},
        DelayedCase{.rule = "2bw", .pipeline = 4, .microbatches = 4}}) {
    const TrainingBench bench;
    DelayedCase on_device = at;
    on_device.settings = places("device", "device", "device");
    const config::Config config = config_of(bench, on_device);
    PlannedSession planned(bench.config("run", delayed_model(on_device)));
    schedule::StepOptions options = planned.plan().options;
    options.stages = even_stages(at.pipeline);
    options.exchange_lag = 0;
    Mutex mutex;
    std::vector<std::int32_t> most(static_cast<std::size_t>(at.pipeline));
    train_on_ranks(config, options, kUpdates, {}, -1, {}, [&](Session& session) {
      TraceRecorder trace;
      const std::vector<double> lrs(static_cast<std::size_t>(at.updates), 1e-3);
      session.train_steps(
          kUpdates, lrs,
          [&](std::int64_t, std::int32_t* tokens, std::int32_t* targets) {
            const auto rows = config::batch_shape(config).rows();
            std::fill(tokens, tokens + rows, 1);
            std::fill(targets, targets + rows, 2);
          },
          &trace);
      const MutexLock lock(mutex);
      for (std::int32_t unit = 0; unit < at.pipeline; ++unit) {
        auto& of_unit = most[static_cast<std::size_t>(unit)];
        of_unit = std::max(of_unit, most_live_in_run(trace, at, unit));
      }
    });
    for (std::int32_t stage = 0; stage < at.pipeline; ++stage) {
      EXPECT_EQ(most[static_cast<std::size_t>(stage)], versions_by_rule(at, stage))
          << at.rule << ", stage " << stage;
    }
  }
}

// A list has as many places for the weights of a stage as its rule needs versions, and no more.
TEST(DelayedUpdates, KeepAsManyVersionsAsTheRuleSays) {
  for (const DelayedCase& at :
       {DelayedCase{.pipeline = 4}, DelayedCase{.rule = "pipedream-vsync", .pipeline = 4},
        DelayedCase{.rule = "2bw", .pipeline = 4, .microbatches = 4}}) {
    DelayedCase larger = at;
    larger.settings = {"model.layers=6"};
    const auto places = most_places_of_stages(larger);
    ASSERT_EQ(places.size(), static_cast<std::size_t>(at.pipeline));
    for (std::int32_t stage = 0; stage < at.pipeline; ++stage) {
      EXPECT_EQ(places[static_cast<std::size_t>(stage)], versions_by_rule(at, stage))
          << at.rule << ", stage " << stage;
    }
  }
}

}  // namespace
}  // namespace sluice::train
