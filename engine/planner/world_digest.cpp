// The parts of a collective differ from rank to rank, and so does its group among several of a
// dimension. So the digest takes its op, dimension, tag and unit, and the table of groups. Ranks with
// equal sequences of these meet in every collective. The program is known by its bytes, since two
// builds of one version may differ in arithmetic.
#include "engine/planner/world_digest.hpp"

#include "base/digest.hpp"
#include "base/posix_file.hpp"
#include "engine/planner/choice/options_text.hpp"
#include "engine/schedule/orders/order_csv.hpp"

namespace sluice::planner {
namespace {

bool is_collective(schedule::Op op) {
  return op == schedule::Op::kGather || op == schedule::Op::kReduceScatter ||
         op == schedule::Op::kAllReduce || op == schedule::Op::kAllToAll;
}

void add_signed(Digest& digest, std::int32_t value) {
  digest.update_u64(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
}

void add_groups(Digest& digest, const schedule::Schedule& list) {
  digest.update_u64(list.groups.size());
  for (const schedule::Group& group : list.groups) {
    digest.update_u64(static_cast<std::uint64_t>(group.dimension));
    digest.update_u64(group.ranks.size());
    for (const std::int32_t rank : group.ranks) add_signed(digest, rank);
  }
}

void add_collectives(Digest& digest, const schedule::Schedule& list) {
  for (const schedule::Instruction& instruction : list.instructions) {
    if (!is_collective(instruction.op)) continue;
    digest.update_u64(static_cast<std::uint64_t>(instruction.op));
    const auto group = static_cast<std::size_t>(instruction.group);
    digest.update_u64(static_cast<std::uint64_t>(list.groups[group].dimension));
    add_signed(digest, instruction.tag);
    add_signed(digest, instruction.unit);
  }
}

}  // namespace

std::string world_digest(const Plan& plan, const config::Config& config) {
  Digest digest;
  digest.update_text(hash_file("/proc/self/exe"));
  for (const auto& [key, value] : config::result_settings(config)) {
    digest.update_text(key);
    digest.update_text(value);
  }
  add_signed(digest, plan.view.ranks);
  add_signed(digest, plan.view.zero_stage);
  digest.update_text(options_text(plan.options));
  digest.update_text(schedule::order_to_csv(plan.pipeline.order));
  for (const schedule::StepKind kind : schedule::kStepKinds) {
    if (!schedule::has_step(plan.options, kind)) continue;
    digest.update_u64(static_cast<std::uint64_t>(kind));
    add_groups(digest, plan.schedules[kind]);
    // The ranks of different stages have lists of their own, which follow from the order and the cut.
    if (plan.pipeline.is_alone()) add_collectives(digest, plan.schedules[kind]);
  }
  return digest.finish().hex();
}

}  // namespace sluice::planner
