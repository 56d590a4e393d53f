// A pager has no schedule: it follows the uses of a program that it does not know. So a pager runs
// here over random lists of uses, with units skipped, repeated, reordered and held, and the calls
// that it made of the device are written as a schedule. Each fetch is an upload into a window of
// slots, each use is an External that reads it, and the only deps are the waits that the pager
// asked for. `validate` and `interpret` judge that schedule as any other: no slot is overwritten
// before its last use, no use reads another unit's bytes, no mapping changes below a use, whatever
// the timing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "base/rng.hpp"
#include "engine/host/unit_pager.hpp"
#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/observed_device.hpp"

namespace sluice {
namespace {

using schedule::Buffer;
using schedule::BufferId;
using schedule::BufferRole;
using schedule::Instruction;
using schedule::InstructionId;
using schedule::Lane;
using schedule::Op;
using schedule::Schedule;
using testing::ObservedCall;
using testing::ObservedDevice;

using Kind = ObservedCall::Kind;

// Units of one to three pages, in windows of some of them.
struct Shape {
  std::vector<std::uint64_t> pages;  // by unit
  std::uint64_t slots = 0;
};

struct Observation {
  Shape shape;
  std::vector<ObservedCall> calls;
  host::WindowFetcher::Counters fetches;
  std::vector<std::uint64_t> mapped_pages;  // so far, at the end of each pass
};

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed, stream_of("test/observed uses")) {}
  std::uint64_t below(std::uint64_t bound) { return random_.below(count_++, bound); }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  CounterRng random_;
  std::uint64_t count_ = 0;
};

Shape draw_shape(Draws& draws) {
  Shape shape;
  std::uint64_t all = 0;
  for (std::uint64_t unit = 0, units = 3 + draws.below(6); unit < units; ++unit) {
    shape.pages.push_back(1 + draws.below(3));
    all += shape.pages.back();
  }
  const std::uint64_t least = *std::max_element(shape.pages.begin(), shape.pages.end());
  shape.slots = least + draws.below(all - least + 1);
  return shape;
}

// A forward and a backward pass; seldom as planned if `unsteady`.
std::vector<std::uint32_t> draw_uses(Draws& draws, std::uint32_t units, bool unsteady) {
  std::vector<std::uint32_t> uses;
  for (std::uint32_t i = 0; i < 2 * units; ++i) {
    const std::uint32_t unit = i < units ? i : 2 * units - 1 - i;
    if (unsteady && draws.one_in(6)) continue;
    uses.push_back(unit);
    if (unsteady && draws.one_in(6)) uses.push_back(unit);
    if (unsteady && draws.one_in(6)) uses.push_back(static_cast<std::uint32_t>(draws.below(units)));
  }
  for (std::size_t i = 1; i < uses.size(); ++i) {
    if (unsteady && draws.one_in(6)) std::swap(uses[i - 1], uses[i]);
  }
  return uses;
}

// The host program: each use is queued work on its stream.
class Program {
 public:
  Program(host::UnitPager& pager, ObservedDevice& device) : pager_(pager), device_(device) {}

  void pass(Draws& draws, const std::vector<std::uint32_t>& uses, bool holds) {
    pager_.begin_pass();
    for (const std::uint32_t unit : uses) {
      acquire(unit);
      compute(unit);
      if (holds && draws.one_in(4)) {
        held_.push_back(unit);
        continue;
      }
      pager_.release(unit, nullptr);
      if (!held_.empty() && draws.one_in(3)) release_held();
    }
    if (!draws.one_in(5)) release_held();  // else it is held into the next pass
  }
  void release_held() {
    for (const std::uint32_t unit : held_) {
      compute(unit);
      pager_.release(unit, nullptr);
    }
    held_.clear();
  }

 private:
  void acquire(std::uint32_t unit) {
    try {
      pager_.acquire(unit, nullptr);
    } catch (const OutOfMemory&) {  // the held units leave no room
      release_held();
      pager_.acquire(unit, nullptr);
    }
  }
  void compute(std::uint32_t unit) { device_.note_use(pager_.window(unit)); }

  host::UnitPager& pager_;
  ObservedDevice& device_;
  std::vector<std::uint32_t> held_;
};

enum class Order : std::uint8_t { kSteady, kRandom };

Observation observe(std::uint64_t seed, Order order = Order::kRandom) {
  Draws draws(seed);
  Observation observation;
  Shape& shape = observation.shape = draw_shape(draws);
  ObservedDevice* device = nullptr;
  host::EngineOptions options;
  options.cuda = true;  // streams of the program are queues
  options.device_bytes = shape.slots * kPageBytes;
  options.pinned_bytes = 64 << 20;
  options.threads = 1;
  options.make_device = [&device](const host::EngineOptions& wanted) {
    auto made = std::make_unique<ObservedDevice>(wanted.device_bytes);
    device = made.get();
    return made;
  };
  const auto engine = std::make_shared<host::HostEngine>(options);
  host::UnitPager pager(engine, {.weights = host::StatePlace::kPinned});
  for (std::uint32_t unit = 0; unit < shape.pages.size(); ++unit) {
    // The last page has a few bytes.
    const std::uint64_t bytes = (shape.pages[unit] - 1) * kPageBytes + 64;
    EXPECT_EQ(pager.add_unit("unit"), unit);
    EXPECT_EQ(pager.add_tensor(unit, host::PagedPart::kWeight, bytes, nullptr), unit);
  }
  pager.seal();
  Program program(pager, *device);
  const auto units = static_cast<std::uint32_t>(shape.pages.size());
  const bool holds = draws.one_in(2);
  for (int pass = 0; pass < 8; ++pass) {
    const bool unsteady = order == Order::kRandom && (pass < 2 || draws.one_in(2));
    program.pass(draws, draw_uses(draws, units, unsteady), holds && unsteady);
    observation.mapped_pages.push_back(pager.statistics().fetches.mapped_pages);
  }
  program.release_held();
  observation.calls = device->calls();
  observation.fetches = pager.statistics().fetches;
  return observation;
}

// The schedule of an observation. Lanes: uploads on the pager's stream, uses on the program's, and
// mappings on D2H, which stands for the pager's thread. A unit's addresses are scratch memory that
// its uses and its mappings touch, so they must be in an order, too.
class ObservedSchedule {
 public:
  // Leaves out the orders that calls of these kinds make.
  explicit ObservedSchedule(const Observation& observation, std::set<Kind> ignored = {})
      : pages_(observation.shape.pages), ignored_(std::move(ignored)) {
    schedule_.slot_bytes = kPageBytes;
    schedule_.slot_count = static_cast<std::uint32_t>(observation.shape.slots);
    for (std::uint32_t unit = 0; unit < pages_.size(); ++unit) add_unit(unit);
    for (const ObservedCall& call : observation.calls) add(call);
    std::set<InstructionId> all;
    for (const auto& [lane, id] : last_) all.insert(id);
    pending_[Lane::kH2D] = all;
    for (std::uint32_t unit = 0; unit < pages_.size(); ++unit) leave(unit);
    schedule_.peak_bytes = {
        schedule_.slot_count * kPageBytes + round_up(schedule_.device_arena_bytes, kPageBytes),
        schedule_.pinned_arena_bytes, 0};
  }
  const Schedule& get() const { return schedule_; }
  // The units in the order of their uses.
  const std::vector<std::uint32_t>& uses() const { return uses_; }

 private:
  Buffer& add_buffer(BufferRole role, Tier tier, std::uint64_t bytes, std::int32_t unit) {
    Buffer buffer;
    buffer.id = static_cast<BufferId>(schedule_.buffers.size());
    buffer.role = role;
    buffer.tier = tier;
    buffer.category = Category::kWeight;
    buffer.bytes = bytes;
    buffer.unit = unit;
    schedule_.buffers.push_back(buffer);
    return schedule_.buffers.back();
  }
  Buffer& add_weights(std::uint32_t unit, Tier tier) {
    const std::uint64_t bytes = (pages_[unit] - 1) * kPageBytes + 64;
    Buffer& buffer = add_buffer(BufferRole::kState, tier, bytes, static_cast<std::int32_t>(unit));
    buffer.kind = StateKind::kWeight;
    buffer.dtype = DType::kF32;
    buffer.elems = bytes / 4;
    return buffer;
  }
  static void place(Buffer& buffer, std::uint64_t& arena_bytes) {
    buffer.persistent = true;
    buffer.offset_bytes = arena_bytes;
    arena_bytes += round_up(buffer.bytes, schedule::kDirectAlignmentBytes);
  }
  void add_unit(std::uint32_t unit) {
    Buffer& home = add_weights(unit, Tier::kPinned);
    place(home, schedule_.pinned_arena_bytes);
    const auto number = static_cast<std::int32_t>(unit);
    schedule_.entry.push_back({StateKind::kWeight, number, -1, home.id, 0});
    schedule_.exit.push_back({StateKind::kWeight, number, -1, home.id, 0});
    Unit& made = units_.emplace_back();
    made.home = home.id;
    Buffer& addresses = add_buffer(BufferRole::kWorkspace, Tier::kDevice, 8, number);
    place(addresses, schedule_.device_arena_bytes);
    made.addresses = addresses.id;
    made.mapped.resize(pages_[unit]);
  }

  Instruction& emit(Op op, Lane lane, std::uint32_t unit) {
    Instruction made;
    made.id = static_cast<InstructionId>(schedule_.instructions.size());
    made.op = op;
    made.lane = lane;
    made.unit = static_cast<std::int32_t>(unit);
    made.layer = 0;
    made.deps = std::vector<schedule::InstructionId>(pending_[lane].begin(), pending_[lane].end());
    pending_[lane].clear();
    last_[lane] = made.id;
    schedule_.instructions.push_back(std::move(made));
    return schedule_.instructions.back();
  }
  static Lane lane_of(std::uint32_t stream) {
    return stream == ObservedDevice::kProgramStream ? Lane::kCompute : Lane::kH2D;
  }
  void wait(Lane lane, std::optional<InstructionId> last) {
    if (last) pending_[lane].insert(*last);
  }
  std::optional<InstructionId> last_of(Lane lane) const {
    const auto found = last_.find(lane);
    return found == last_.end() ? std::nullopt : std::optional(found->second);
  }

  void add(const ObservedCall& call) {
    switch (call.kind) {
      case Kind::kMap:
        map(call);
        break;
      case Kind::kCopy:
        upload(call.range);
        break;
      case Kind::kUse:
        use(call.range);
        break;
      case Kind::kRecord:
        recorded_[call.event] = last_of(lane_of(call.stream));
        break;
      case Kind::kWait:
        if (!ignored_.contains(call.kind)) wait(lane_of(call.stream), recorded_[call.event]);
        break;
      // What the program's thread waits for orders nothing that it queues: streams alone do.
      case Kind::kAwaitEvent:
        if (!call.by_program && !ignored_.contains(call.kind)) {
          wait(Lane::kD2H, recorded_[call.event]);
        }
        break;
      case Kind::kAwaitStream:
        if (!call.by_program && !ignored_.contains(call.kind)) {
          wait(Lane::kD2H, last_of(lane_of(call.stream)));
        }
        break;
    }
  }

  void map(const ObservedCall& call) {
    Unit& unit = units_[call.range];
    unit.mapped[call.page] = call.block;
    emit(Op::kExternal, Lane::kD2H, call.range).writes.push_back({unit.addresses, 0, 0});
  }
  // The window of the unit is no longer needed; its users must be done.
  void leave(std::uint32_t unit) {
    if (!units_[unit].is_here) return;
    units_[unit].is_here = false;
    Buffer& window = schedule_.buffers[units_[unit].window];
    emit(Op::kRelease, Lane::kH2D, unit).reads.push_back({window.id, 0, 0});
    if (read_.contains(window.id)) return;
    // It came in vain: nothing is lost when it goes unread.
    window.role = BufferRole::kWorkspace;
    Instruction& upload = schedule_.instructions[units_[unit].upload];
    upload.op = Op::kExternal;
    upload.reads.clear();
  }
  bool shares_slots(std::uint32_t here, std::uint32_t unit) const {
    const std::vector<std::uint32_t>& slots = schedule_.buffers[units_[here].window].slots;
    const std::vector<std::uint32_t>& wanted = units_[unit].mapped;
    return std::any_of(slots.begin(), slots.end(), [&](std::uint32_t slot) {
      return std::find(wanted.begin(), wanted.end(), slot) != wanted.end();
    });
  }
  void upload(std::uint32_t unit) {
    // The pager's thread queues it after its mappings and all that it has waited for.
    wait(Lane::kH2D, last_of(Lane::kD2H));
    pending_[Lane::kH2D].insert(pending_[Lane::kD2H].begin(), pending_[Lane::kD2H].end());
    for (std::uint32_t other = 0; other < units_.size(); ++other) {
      if (units_[other].is_here && (other == unit || shares_slots(other, unit))) leave(other);
    }
    Buffer& window = add_weights(unit, Tier::kDevice);
    window.window = true;
    window.slots = units_[unit].mapped;
    Instruction& copy = emit(Op::kUpload, Lane::kH2D, unit);
    copy.reads.push_back({units_[unit].home, 0, 0});
    copy.writes.push_back({window.id, 0, 0});
    copy.bytes = window.bytes;
    units_[unit].window = window.id;
    units_[unit].upload = copy.id;
    units_[unit].is_here = true;
  }
  void use(std::uint32_t unit) {
    const auto number = static_cast<std::int32_t>(uses_.size());
    uses_.push_back(unit);
    Buffer& result = add_buffer(BufferRole::kLoss, Tier::kDevice, 4, -1);
    result.microbatch = number;
    place(result, schedule_.device_arena_bytes);
    Instruction& compute = emit(Op::kExternal, Lane::kCompute, unit);
    compute.microbatch = number;
    compute.reads.push_back({units_[unit].window, 0, 0});
    compute.writes.push_back({units_[unit].addresses, 0, 0});
    compute.writes.push_back({result.id, 0, 0});
    read_.insert(units_[unit].window);
  }

  struct Unit {
    BufferId home = schedule::kNoId, addresses = schedule::kNoId;
    std::vector<std::uint32_t> mapped;  // the slot below each page
    BufferId window = schedule::kNoId;  // the last one
    InstructionId upload = schedule::kNoId;
    bool is_here = false;
  };
  const std::vector<std::uint64_t> pages_;
  const std::set<Kind> ignored_;
  Schedule schedule_;
  std::vector<Unit> units_;
  std::set<BufferId> read_;                          // windows with a use
  std::map<Lane, std::set<InstructionId>> pending_;  // deps of the next instruction
  std::map<Lane, InstructionId> last_;
  std::map<const void*, std::optional<InstructionId>> recorded_;  // by event
  std::vector<std::uint32_t> uses_;
};

// The uses with all weights on the device.
std::map<std::int32_t, schedule::Term> terms_of_plain(const Observation& observation,
                                                      const std::vector<std::uint32_t>& uses) {
  Observation plain;
  plain.shape = observation.shape;
  plain.shape.slots = 0;
  for (std::uint32_t unit = 0; unit < plain.shape.pages.size(); ++unit) {
    for (std::uint32_t page = 0; page < plain.shape.pages[unit]; ++page) {
      plain.calls.push_back({.kind = Kind::kMap,
                             .range = unit,
                             .page = page,
                             .block = static_cast<std::uint32_t>(plain.shape.slots++)});
    }
    plain.calls.push_back({.kind = Kind::kCopy, .stream = 1, .range = unit});
  }
  for (const std::uint32_t unit : uses) {
    plain.calls.push_back({.kind = Kind::kUse, .range = unit});
  }
  return schedule::interpret(ObservedSchedule(plain).get()).losses;
}

TEST(ObservedUses, SchedulesOfRandomUsesAreSafeAndComputeThePlainValues) {
  std::uint64_t prefetches = 0, demands = 0, deviations = 0, plans = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Observation observation = observe(seed);
    const ObservedSchedule observed(observation);
    const std::vector<std::string> problems = schedule::validate(observed.get());
    ASSERT_TRUE(problems.empty()) << problems.front();
    const auto expected = terms_of_plain(observation, observed.uses());
    ASSERT_EQ(expected.size(), observed.uses().size());
    for (const schedule::InterpretOptions& options : schedule::adverse_timings(seed, 2)) {
      const schedule::Interpretation found = schedule::interpret(observed.get(), options);
      ASSERT_TRUE(found.errors.empty()) << found.errors.front();
      ASSERT_EQ(found.losses, expected);
    }
    prefetches += observation.fetches.prefetches;
    demands += observation.fetches.demand_fetches;
    deviations += observation.fetches.deviations;
    plans += observation.fetches.plans;
  }
  // All ways of a fetch were seen.
  EXPECT_GT(prefetches, 100u);
  EXPECT_GT(demands, 100u);
  EXPECT_GT(deviations, 100u);
  EXPECT_GT(plans, 20u);
}

// Shows that the schedules state what the pager asked for: without its waits they are refused.
TEST(ObservedUses, WithoutThePagersWaitsTheScheduleIsRefused) {
  const std::set<Kind> of_streams{Kind::kWait}, of_threads{Kind::kAwaitEvent, Kind::kAwaitStream};
  for (const std::set<Kind>& ignored : {of_streams, of_threads}) {
    int refused = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const ObservedSchedule observed(observe(seed), ignored);
      refused += schedule::validate(observed.get()).empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 5);
  }
}

// A unit has one address for life. In a steady order its pages have one place for life, too.
TEST(ObservedUses, ASteadyOrderMapsEachPageOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Observation observation = observe(seed, Order::kSteady);
    const std::vector<std::uint64_t>& pages = observation.shape.pages;
    const std::uint64_t all = std::accumulate(pages.begin(), pages.end(), std::uint64_t{0});
    EXPECT_EQ(observation.mapped_pages.front(), all) << seed;
    EXPECT_EQ(observation.mapped_pages.back(), all) << seed;
  }
}

}  // namespace
}  // namespace sluice
