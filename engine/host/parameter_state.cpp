// A session that commits notes one number of writes for all blocks of a home on storage. So a part
// of such a home is never written alone: all of its blocks are read and written.
#include "engine/host/parameter_state.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/block8.hpp"

namespace sluice::host {
namespace {

using Access = runtime::StateStore::Access;

// Elements of a unit.
struct Elems {
  std::uint64_t begin = 0, end = 0;
};

// The unit's elements that hold the wanted part of a parameter's state.
Elems wanted_elems(const SessionParameter& parameter, KeptState state, std::uint64_t first,
                   std::uint64_t count) {
  const std::uint64_t each = state.scales ? kBlock8Elems : 1;
  const std::uint64_t all = ceil_div(parameter.elems, each);
  if (first > all || count > all - first) {
    throw InputError("the parameter '" + parameter.options.name + "' has " + std::to_string(all) +
                     (state.scales ? " scales" : " elements") + ", not " + std::to_string(count) +
                     " from " + std::to_string(first) + " on");
  }
  return {parameter.first_elem + first * each,
          parameter.first_elem + std::min((first + count) * each, parameter.elems)};
}

// Calls visit(window, part) for windows of whole blocks that cover `wanted`, or all of the unit's;
// part: the wanted elements in the window.
template <typename Visit>
void for_windows(Elems wanted, std::uint64_t unit_elems, bool all, const Visit& visit) {
  if (wanted.begin == wanted.end) return;
  std::uint64_t at = all ? 0 : wanted.begin / kLawBlockElems * kLawBlockElems;
  const std::uint64_t last = all ? unit_elems : round_up(wanted.end, kLawBlockElems);
  for (; at < last; at += runtime::StateStore::kWindowElems) {
    const Elems window{at, std::min(at + runtime::StateStore::kWindowElems, last)};
    visit(window, Elems{std::clamp(wanted.begin, window.begin, window.end),
                        std::clamp(wanted.end, window.begin, window.end)});
  }
}

// Calls copy(offset in the window, offset in the program's array, bytes) for runs of bytes.
template <typename Copy>
void for_runs(DType dtype, bool scales, std::uint64_t origin, Elems window, Elems part,
              const Copy& copy) {
  if (dtype != DType::kBlock8) {
    const std::uint64_t each = dtype_bytes(dtype);
    return copy((part.begin - window.begin) * each, (part.begin - origin) * each,
                (part.end - part.begin) * each);
  }
  // Parameters begin at whole blocks of 128.
  for (std::uint64_t at = part.begin; at < part.end;) {
    const std::uint64_t block = (at - window.begin) / kBlock8Elems;
    const std::uint64_t inside = (at - window.begin) % kBlock8Elems;
    const std::uint64_t end = std::min(at - inside + kBlock8Elems, part.end);
    const kernels::Block8Place place = kernels::block8_place(block);
    if (scales) {
      copy(place.scale_bytes, (at - origin) / kBlock8Elems * sizeof(float), sizeof(float));
    } else {
      copy(place.code_bytes + inside, at - origin, end - at);
    }
    at = end;
  }
}

DType kept_dtype(const SealedSession& session, const SessionParameter& parameter, StateKind kind) {
  return parameter_layout(session.table(), parameter, {kind, false}).dtype;
}

std::uint64_t unit_elems(const SealedSession& session, const SessionParameter& parameter) {
  return session.model().units[static_cast<std::size_t>(parameter.unit)].elems;
}

}  // namespace

kernels::StateLayout parameter_layout(const model::ParameterTable& table,
                                      const SessionParameter& parameter, KeptState state) {
  const bool is_moment = state.kind != StateKind::kWeight && state.kind != StateKind::kGradient;
  kernels::StateLayout found{kernels::StateExtent::kPerElement, parameter.options.dtype};
  if (is_moment) {
    found =
        kernels::state_layout(table.options(static_cast<std::size_t>(parameter.unit)), state.kind);
  }
  if (found.extent == kernels::StateExtent::kAbsent ||
      (state.scales && found.dtype != DType::kBlock8)) {
    throw InputError("the parameter '" + parameter.options.name + "' has no " +
                     std::string(state_kind_name(state.kind)) + (state.scales ? " of 8 bits" : "") +
                     " by its group's rule");
  }
  if (state.scales) found.dtype = DType::kF32;
  return found;
}

void store_masters(const kernels::OptimizerOptions& options, const std::byte* weights,
                   std::uint64_t elems, std::byte* masters) {
  if (options.split_master) {
    std::memset(masters, 0, elems * sizeof(std::int16_t));
    return;
  }
  auto* const out = reinterpret_cast<float*>(masters);
  if (options.weight == DType::kBF16) {
    const auto* const from = reinterpret_cast<const bf16*>(weights);
    std::transform(from, from + elems, out, [](bf16 value) { return to_float(value); });
  } else {
    const auto* const from = reinterpret_cast<const f16*>(weights);
    std::transform(from, from + elems, out, [](f16 value) { return to_float(value); });
  }
}

void read_parameter(SealedSession& session, const SessionParameter& parameter, KeptState state,
                    std::uint64_t first, std::uint64_t count, std::byte* into) {
  static_cast<void>(parameter_layout(session.table(), parameter, state));
  const Elems wanted = wanted_elems(parameter, state, first, count);
  const DType dtype = kept_dtype(session, parameter, state.kind);
  const std::array<StateKind, 1> kinds{state.kind};
  for_windows(wanted, unit_elems(session, parameter), false, [&](Elems window, Elems part) {
    session.store().visit(kinds, parameter.unit, window.begin, window.end, Access::kRead,
                          [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> data) {
                            for_runs(dtype, state.scales, wanted.begin, window, part,
                                     [&](std::uint64_t at, std::uint64_t to, std::uint64_t bytes) {
                                       std::memcpy(into + to, data[0] + at, bytes);
                                     });
                          });
  });
}

void write_parameter(SealedSession& session, const SessionParameter& parameter, KeptState state,
                     std::uint64_t first, std::uint64_t count, const std::byte* from,
                     const std::function<void()>& changing) {
  static_cast<void>(parameter_layout(session.table(), parameter, state));
  const Elems wanted = wanted_elems(parameter, state, first, count);
  const kernels::OptimizerOptions& options =
      session.table().options(static_cast<std::size_t>(parameter.unit));
  const bool sets_master = state.kind == StateKind::kWeight && options.has_master();
  const StateKind stored = sets_master ? StateKind::kMaster : state.kind;
  const bool all = session.commits() && session.rests_on_storage(parameter.unit, stored);
  if (all) {
    changing();
    session.leave_committed_state();
  }
  const DType dtype = kept_dtype(session, parameter, state.kind);
  const auto update = [&](StateKind kind, Elems window, const auto& change) {
    const std::array<StateKind, 1> kinds{kind};
    session.store().visit(kinds, parameter.unit, window.begin, window.end, Access::kUpdate,
                          [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> data) {
                            changing();
                            change(data[0]);
                          });
  };
  for_windows(wanted, unit_elems(session, parameter), all, [&](Elems window, Elems part) {
    update(state.kind, window, [&](std::byte* data) {
      for_runs(dtype, state.scales, wanted.begin, window, part,
               [&](std::uint64_t at, std::uint64_t source, std::uint64_t bytes) {
                 std::memcpy(data + at, from + source, bytes);
               });
    });
    if (!sets_master) return;
    const std::uint64_t master_bytes =
        dtype_bytes(kernels::state_layout(options, StateKind::kMaster).dtype);
    update(StateKind::kMaster, window, [&](std::byte* data) {
      store_masters(options, from + (part.begin - wanted.begin) * dtype_bytes(dtype),
                    part.end - part.begin, data + (part.begin - window.begin) * master_bytes);
    });
  });
}

}  // namespace sluice::host
