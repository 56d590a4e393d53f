// Compares prices with values worked out by hand from a profile.
#include "engine/planner/price/cost_model.hpp"

#include <gtest/gtest.h>

#include "engine/config/shapes.hpp"
#include "engine/planner/free_optimizer.hpp"
#include "engine/planner/plan.hpp"
#include "tests/support/schedule_sketch.hpp"

namespace sluice::testing {
namespace {

class CostModelTest : public ::testing::Test {
 protected:
  CostModelTest() {
    // Only products cost anything to speak of: 1 operation a second.
    hardware_.gemm_f32_flops_per_s = 1.0;
    hardware_.memory_bandwidth_bytes_per_s = 1e15;
    hardware_.launch_overhead_s = hardware_.hand_over_s = 1e-9;
  }
  double price(schedule::Instruction instruction, std::vector<schedule::Instruction> before = {},
               std::vector<schedule::Buffer> buffers = {}) {
    schedule::Schedule schedule;
    schedule.instructions = std::move(before);
    instruction.id = static_cast<schedule::InstructionId>(schedule.instructions.size());
    schedule.instructions.push_back(instruction);
    schedule.buffers = std::move(buffers);
    const model::Model model(config::model_shape(config_));
    planner::CostModel(config_, model, config::batch_shape(config_), hardware_).apply(schedule);
    return schedule.instructions.back().cost_s;
  }
  schedule::SimulationModel simulation_model() const {
    const model::Model model(config::model_shape(config_));
    return planner::CostModel(config_, model, config::batch_shape(config_), hardware_)
        .simulation_model();
  }
  double cores_of(schedule::Lane lane) const {
    return simulation_model().cores_used[static_cast<std::size_t>(lane)];
  }
  static schedule::Instruction of(schedule::Op op, schedule::Lane lane, std::int32_t unit = 1) {
    schedule::Instruction instruction;
    instruction.op = op;
    instruction.lane = lane;
    instruction.unit = unit;
    return instruction;
  }
  double pass(schedule::Op op) { return price(of(op, schedule::Lane::kCompute)); }
  std::vector<schedule::SavedPart> saved_parts() const {
    const model::Model model(config::model_shape(config_));
    return model.units()[1].layer->saves(config::batch_shape(config_),
                                         planner::PricedKernels(hardware_, 1));
  }
  // The price of a Recompute of these parts of a block.
  double recompute(schedule::PartMask mask) {
    schedule::Instruction instruction = of(schedule::Op::kRecompute, schedule::Lane::kCompute);
    std::vector<schedule::Buffer> buffers;
    std::uint64_t at = 0;
    const std::vector<schedule::SavedPart> parts = saved_parts();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if ((mask & schedule::part_bit(part)) != 0) {
        schedule::Buffer buffer;
        buffer.id = static_cast<schedule::BufferId>(buffers.size());
        buffer.role = schedule::BufferRole::kSaved;
        buffer.first_elem = at;
        buffer.elems = buffer.bytes = parts[part].bytes;
        instruction.writes.push_back({buffer.id, 0, 0});
        buffers.push_back(buffer);
      }
      at += parts[part].bytes;
    }
    return price(instruction, {}, buffers);
  }

  // Rows times inputs times outputs of the block's four linear layers, and attention.
  static constexpr double kRows = 64, kHidden = 64, kFfn = 256;
  static constexpr double kLinear = 2 * kRows * kHidden * (4 * kHidden + 2 * kFfn);
  static constexpr double kAttention = 2 * (2 * 2) * 32 * 32 * 32 / 0.6;

  config::Config config_ = config::parse_config(
      "", "test",
      std::vector<std::string>{"model.layers=1", "model.hidden=64", "model.heads=2", "train.seq=32",
                               "train.micro_batch=2", "train.precision=fp32", "train.threads=2",
                               "data.paths=x"});
  planner::HardwareProfile hardware_;
};

TEST_F(CostModelTest, APassCostsTheSumOfItsKernels) {
  EXPECT_NEAR(pass(schedule::Op::kForward) / (kLinear + kAttention), 1, 1e-6);
  EXPECT_NEAR(pass(schedule::Op::kBackwardInput) / (kLinear + 2.5 * kAttention), 1, 1e-6);
  EXPECT_NEAR(pass(schedule::Op::kBackwardWeight) / kLinear, 1, 1e-6);
  // A recompute of all parts leaves out the last product.
  const std::vector<schedule::SavedPart> parts = saved_parts();
  EXPECT_NEAR(pass(schedule::Op::kForward) - recompute(schedule::all_parts(parts)),
              2 * kRows * kHidden * kFfn, 1);
}

// A recompute costs what its operations cost, and no other of the unit's.
TEST_F(CostModelTest, ARecomputeCostsThePartsThatItMakes) {
  const std::vector<schedule::SavedPart> parts = saved_parts();
  using schedule::MadeBy;
  const double attention = recompute(schedule::parts_made_by(parts, MadeBy::kAttention));
  EXPECT_NEAR(attention / kAttention, 1, 1e-6);
  // Memory is free in this profile, and so is work without products.
  EXPECT_LT(recompute(schedule::parts_made_by(parts, MadeBy::kElementwise)), 1e-3 * attention);
  const double slow_memory = 1e6;
  hardware_.memory_bandwidth_bytes_per_s = slow_memory;
  // Two norms read and write the hidden size, and GELU the size of the MLP, in fp32.
  EXPECT_NEAR(recompute(schedule::parts_made_by(parts, MadeBy::kElementwise)) * slow_memory,
              2 * 4 * kRows * (2 * kHidden + kFfn), 1);
}

// Time is attention's own axis: its work grows with the square.
TEST_F(CostModelTest, AttentionBeyondItsGridGrowsWithTheSquareOfTime) {
  for (const planner::TimedOperation operation :
       {planner::TimedOperation::kAttentionForward, planner::TimedOperation::kAttentionBackward}) {
    hardware_.operations.push_back({operation, DType::kF32, {{{4}, {16}, {32}}}, {1e6}});
  }
  // Twice the grid's time: four times its seconds.
  EXPECT_NEAR(pass(schedule::Op::kForward) - kLinear, 4e6, 1e3);
  EXPECT_NEAR(pass(schedule::Op::kBackwardInput) - kLinear, 4e6, 1e3);
}

// Without rates by direction, both take the link's one rate.
TEST_F(CostModelTest, ALinkMayHaveARateForEachDirection) {
  const auto copy = [&](schedule::Op op, schedule::Lane lane) {
    schedule::Instruction instruction = of(op, lane);
    instruction.bytes = 1'000'000;
    return price(instruction);
  };
  hardware_.single_core_copy_bytes_per_s = 1e6;
  EXPECT_NEAR(copy(schedule::Op::kUpload, schedule::Lane::kH2D), 1, 1e-6);
  hardware_.h2d_bytes_per_s = 2e6;
  hardware_.d2h_bytes_per_s = 5e5;
  EXPECT_NEAR(copy(schedule::Op::kUpload, schedule::Lane::kH2D), 0.5, 1e-6);
  EXPECT_NEAR(copy(schedule::Op::kDownload, schedule::Lane::kD2H), 2, 1e-6);
}

TEST_F(CostModelTest, StateOperationsArePricedByTheirElements) {
  const auto grid = [&](planner::TimedOperation operation, DType dtype, double seconds) {
    hardware_.operations.push_back({operation, dtype, {{{1000}, {1}, {1}}}, {seconds}});
  };
  grid(planner::TimedOperation::kAccumulate, DType::kBF16, 1);
  grid(planner::TimedOperation::kSquaredNorm, DType::kF32, 2);
  grid(planner::TimedOperation::kAdamW, DType::kF32, 3);
  grid(planner::TimedOperation::kAdamW, DType::kBF16, 4);
  const auto buffer = [](StateKind kind, DType dtype, schedule::BufferId id) {
    schedule::Buffer made;
    made.id = id;
    made.kind = kind;
    made.dtype = dtype;
    made.bytes = 10'000 * dtype_bytes(dtype);
    return made;
  };
  const std::vector<schedule::Buffer> buffers{
      buffer(StateKind::kGradient, DType::kBF16, 0), buffer(StateKind::kGradient, DType::kF32, 1),
      buffer(StateKind::kMoment1, DType::kF32, 2), buffer(StateKind::kMaster, DType::kF32, 3)};
  schedule::Instruction accumulate = of(schedule::Op::kAccumulateGrad, schedule::Lane::kOptimizer);
  accumulate.reads = {{0, 0, 4000}, {1, 0, 8000}};
  accumulate.writes = {{1, 0, 8000}};
  EXPECT_NEAR(price(accumulate, {}, buffers), 2, 1e-6);
  schedule::Instruction norm = of(schedule::Op::kGradNorm, schedule::Lane::kOptimizer);
  norm.reads = {{1, 0, 0}};
  EXPECT_NEAR(price(norm, {}, buffers), 20, 1e-6);
  schedule::Instruction step = of(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer);
  step.reads = {{1, 0, 4000}};
  step.writes = {{2, 0, 4000}};
  EXPECT_NEAR(price(step, {}, buffers), 3, 1e-6);
  config_.train.precision = config::Config::Precision::kBF16;
  step.reads = {{0, 0, 2000}};
  step.writes.push_back({3, 0, 4000});
  EXPECT_NEAR(price(step, {}, buffers), 4, 1e-6);
  // By bytes: a gradient summed in fp32 has two more of them than the 28 that were measured.
  step.reads = {{1, 0, 4000}};
  EXPECT_NEAR(price(step, {}, buffers), 4.0 * 30 / 28, 1e-6);
  // By arithmetic: 8-bit moments move half the bytes, and take longer.
  config_.optimizer.moments = config::Config::Moments::k8Bit;
  EXPECT_GT(price(step, {}, buffers), 1.5 * 4.0);
}

TEST_F(CostModelTest, DuplexIsMeasuredAgainstBothRates) {
  hardware_.cores = 8;
  hardware_.storage_read_bytes_per_s = 2e9;
  hardware_.storage_write_bytes_per_s = 1e9;
  hardware_.storage_duplex_bytes_per_s = 1e9;
  EXPECT_NEAR(simulation_model().storage_duplex, 0.25 + 0.5, 1e-9);
  EXPECT_EQ(cores_of(schedule::Lane::kCompute), 2);
  config_.train.threads = 0;  // all
  EXPECT_EQ(cores_of(schedule::Lane::kCompute), 8);
}

TEST_F(CostModelTest, ACopyThatWaitsForItsLinkLeavesTheCore) {
  EXPECT_EQ(cores_of(schedule::Lane::kH2D), 1);
  config_.memory.link_bandwidth_bytes_per_s = hardware_.single_core_copy_bytes_per_s / 4;
  EXPECT_NEAR(cores_of(schedule::Lane::kH2D), 0.25, 1e-9);
}

TEST_F(CostModelTest, FewerThreadsThanTheProfilesTakeLonger) {
  const double both = pass(schedule::Op::kForward);
  config_.train.threads = 1;
  EXPECT_NEAR(pass(schedule::Op::kForward) / both, 2, 1e-6);
  config_.train.threads = 4;  // more than there are: no faster
  EXPECT_NEAR(pass(schedule::Op::kForward) / both, 1, 1e-6);
  hardware_.core_scaling = 0.5;  // the second core adds half
  config_.train.threads = 1;
  EXPECT_NEAR(pass(schedule::Op::kForward) / both, 1.5, 1e-6);
}

TEST_F(CostModelTest, AMeasuredGridGoesBeforeTheRate) {
  // Each product with B transposed takes a second at any size: four in a forward pass.
  hardware_.operations.push_back(
      {planner::TimedOperation::kGemmNT, DType::kF32, {{{1 << 20}, {1 << 20}, {1 << 20}}}, {1.0}});
  EXPECT_NEAR(pass(schedule::Op::kForward) - kAttention, 4, 1e-3);
  EXPECT_NEAR(pass(schedule::Op::kBackwardWeight) / kLinear, 1, 1e-6);
}

TEST_F(CostModelTest, ATransferHasALatencyAndACopyItsLink) {
  schedule::Instruction read = of(schedule::Op::kStorageRead, schedule::Lane::kStorageRead);
  read.bytes = 1'000'000;
  hardware_.storage_latency_s = 0.5;
  hardware_.storage_read_bytes_per_s = 1e6;
  EXPECT_NEAR(price(read), 1.5, 1e-6);
  hardware_.operations.push_back(
      {planner::TimedOperation::kStorageRead, DType::kU8, {{{1'000'000}, {1}, {1}}}, {0.25}});
  EXPECT_NEAR(price(read), 0.25, 1e-6);

  schedule::Instruction copy = of(schedule::Op::kUpload, schedule::Lane::kH2D);
  copy.bytes = 1'000'000;
  hardware_.single_core_copy_bytes_per_s = 1e7;
  EXPECT_NEAR(price(copy), 0.1, 1e-6);
  config_.memory.link_bandwidth_bytes_per_s = 1e6;
  config_.memory.link_latency_s = 2;
  EXPECT_NEAR(price(copy), 3, 1e-6);
}

// On a GPU compute and copies are its own, at its own rates; the optimizer lane stays the host's.
TEST_F(CostModelTest, AGpuIsPricedByItsOwnFiguresAndTakesNoCores) {
  const double on_host = pass(schedule::Op::kForward);
  planner::HardwareProfile gpu = hardware_.gpu_or_default();
  gpu.gemm_f32_flops_per_s = 100.0;
  gpu.memory_bandwidth_bytes_per_s = 1e15;
  gpu.single_core_copy_bytes_per_s = 2e6;
  gpu.launch_overhead_s = gpu.hand_over_s = 1e-9;
  hardware_.gpu = std::make_shared<const planner::HardwareProfile>(gpu);
  EXPECT_EQ(pass(schedule::Op::kForward),
            on_host);  // memory.backend = "auto" was not settled to the GPU
  config_.memory.backend = config::Config::Backend::kCuda;
  EXPECT_NEAR(on_host / pass(schedule::Op::kForward), 100, 1e-6);
  config_.train.threads = 1;  // the host's
  EXPECT_NEAR(on_host / pass(schedule::Op::kForward), 100, 1e-6);
  schedule::Instruction copy = of(schedule::Op::kUpload, schedule::Lane::kH2D);
  copy.bytes = 1'000'000;
  EXPECT_NEAR(price(copy), 0.5, 1e-6);

  schedule::Instruction norm = of(schedule::Op::kGradNorm, schedule::Lane::kOptimizer);
  schedule::Buffer gradient;
  gradient.id = 0;
  gradient.dtype = DType::kF32;
  gradient.bytes = 4'000'000;
  norm.reads = {{0, 0, gradient.bytes}};
  hardware_.memory_bandwidth_bytes_per_s = 4e6;
  const double host_lane = price(norm, {}, {gradient});
  norm.lane = schedule::Lane::kCompute;
  EXPECT_GT(host_lane, 0.5);
  EXPECT_LT(price(norm, {}, {gradient}), 1e-3);

  EXPECT_EQ(cores_of(schedule::Lane::kCompute), 0);
  EXPECT_EQ(cores_of(schedule::Lane::kH2D), 0);
  EXPECT_EQ(cores_of(schedule::Lane::kOptimizer), 1);
}

TEST_F(CostModelTest, OnlyInstructionsWokenByAnotherLanePayForTheWakeUp) {
  hardware_.launch_overhead_s = 1;
  hardware_.hand_over_s = 10;
  schedule::Instruction first = of(schedule::Op::kUpload, schedule::Lane::kH2D);
  schedule::Instruction second = of(schedule::Op::kDownload, schedule::Lane::kD2H);
  EXPECT_NEAR(price(second, {first}), 1, 1e-3);
  second.deps = {0};
  EXPECT_NEAR(price(second, {first}), 10, 1e-3);
  second.lane = schedule::Lane::kH2D;
  EXPECT_NEAR(price(second, {first}), 1, 1e-3);
  // A transfer's own time has the wake-up.
  second.lane = schedule::Lane::kD2H;
  first.lane = schedule::Lane::kStorageRead;
  EXPECT_NEAR(price(second, {first}), 1, 1e-3);
}

// A read of state that only the update sees is free with it; one of weights that a pass sees is
// not.
TEST(FreeOptimizer, LeavesOutUpdatesAndTheTransfersOfTheirState) {
  using schedule::Lane;
  using schedule::Op;
  ScheduleSketch sketch;
  const schedule::BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, 1024, 0);
  const schedule::BufferId state = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 1024);
  const schedule::BufferId window = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 1024);
  const auto add = [&](Op op, Lane lane, double cost_s, schedule::BufferId from,
                       schedule::BufferId to) {
    sketch.emit(op, lane, {all(from)}, {all(to)}).cost_s = cost_s;
  };
  add(Op::kStorageRead, Lane::kStorageRead, 1.0, home, state);
  add(Op::kOptimizerStep, Lane::kOptimizer, 2.0, state, state);
  add(Op::kStorageWrite, Lane::kStorageWrite, 4.0, state, home);
  add(Op::kStorageRead, Lane::kStorageRead, 8.0, home, window);
  add(Op::kForward, Lane::kCompute, 16.0, window, window);
  schedule::Schedule& schedule = sketch.schedule;
  for (schedule::InstructionId id = 0; id < 5; ++id) {
    schedule.instructions[id].id = id;
    if (id > 0) schedule.instructions[id].deps = {id - 1};
  }
  EXPECT_NEAR(schedule::simulate(schedule, {}).total_s, 31.0, 1e-6);
  EXPECT_NEAR(planner::simulate_free_optimizer(schedule, {}).total_s, 24.0, 1e-6);
}

}  // namespace
}  // namespace sluice::testing
