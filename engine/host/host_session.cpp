#include "engine/host/host_session.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "base/posix_file.hpp"
#include "base/thread.hpp"
#include "collectives/communicator.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/host/state_runner.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/state_operations.hpp"
#include "engine/runtime/state_store.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::host {
namespace {

constexpr const char* kUpdatesNote = "updates";  // metadata of saved files
constexpr std::uint64_t kMostUpdates = std::uint64_t{1} << 62;

std::array<std::uint64_t, kTierCount> bytes_left(const allocator::Ledger& ledger) {
  std::array<std::uint64_t, kTierCount> left{};
  for (const Tier tier : kTiers) {
    const std::uint64_t cap = ledger.cap_bytes(tier);
    left[static_cast<std::size_t>(tier)] = cap - std::min(cap, ledger.totals(tier).live_bytes);
  }
  return left;
}

std::unique_ptr<offload::StorageEngine> make_storage(const HostEngine& engine,
                                                     const SessionPlan& plan) {
  if (plan.need.storage_bytes == 0) return nullptr;
  return offload::make_storage_engine(engine.options().storage_engine.c_str(), {});
}

// Masters that are exactly the weights.
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

}  // namespace

// All that seal() makes, in the order in which it is needed.
struct HostSession::Sealed {
  Sealed(HostEngine& engine, const SessionSpace& space, StatePlace place)
      : kernels(kernels::make_host_state_kernels(engine.options().threads)),
        table(space.space(), space.rules()),
        model(make_state_model(space.space(), space.unit_names(), table, *kernels)),
        plan(plan_session(model, bytes_left(engine.ledger()), place)),
        alone(collectives::make_single_communicator()),
        storage(make_storage(engine, plan)),
        memory(engine.device(), engine.ledger(), storage.get(), engine.options().storage_paths,
               plan.need, make_run_id()),
        program(plan.update, memory),
        operations(space.space(), table, DType::kF32),
        runner(space, table, operations, *kernels),
        executor(engine.device(), memory.storage(), runner, engine.options().deadline_s),
        store(engine.device(), memory, plan.update, {model.view, model.pipeline, *alone}),
        files(space.space(), table, store) {
    executor.prepare(program);
  }

  // A home in pinned memory.
  std::byte* address(std::int32_t unit, StateKind kind) {
    for (const schedule::Buffer& buffer : plan.update.buffers) {
      if (buffer.persistent && buffer.role == schedule::BufferRole::kState && buffer.unit == unit &&
          buffer.kind == kind) {
        return memory.address(buffer);
      }
    }
    throw InternalError("the session's schedule has no such home");
  }

  // Moments are zero; masters are the weights.
  void fill_state(std::int32_t unit, std::uint64_t elems) {
    const kernels::OptimizerOptions& options = table.options(static_cast<std::size_t>(unit));
    const std::byte* const weights = address(unit, StateKind::kWeight);
    for (const StateKind kind : kOptimizerKinds) {
      const kernels::StateLayout layout = kernels::state_layout(options, kind);
      if (layout.extent == kernels::StateExtent::kAbsent) continue;
      const std::array<StateKind, 1> kinds{kind};
      store.visit(kinds, unit, 0, elems, runtime::StateStore::Access::kWrite,
                  [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                    if (kind == StateKind::kMaster) {
                      store_masters(options, weights + begin * dtype_bytes(options.weight),
                                    end - begin, data[0]);
                    } else {
                      std::memset(data[0], 0, bytes_of(layout.dtype, end - begin));
                    }
                  });
    }
  }

  const std::unique_ptr<kernels::StateKernels> kernels;
  model::ParameterTable table;
  const schedule::StepModel model;
  const SessionPlan plan;
  const std::unique_ptr<collectives::Communicator> alone;
  const std::unique_ptr<offload::StorageEngine> storage;
  runtime::RunMemory memory;
  runtime::Program program;
  runtime::StateOperations operations;
  StateRunner runner;
  runtime::Executor executor;
  runtime::StateStore store;
  checkpoint::ModelState files;
};

// An update under way, of which the program makes parts.
struct HostSession::Running {
  explicit Running(double deadline_seconds) : exchange(deadline_seconds) {}
  ~Running() { exchange.abandon(); }  // then the thread is joined

  UpdateExchange exchange;
  double seconds = 0;  // of the pass, once it has finished
  std::jthread pass;
};

HostSession::HostSession(std::shared_ptr<HostEngine> engine, StatePlace state)
    : engine_(std::move(engine)), place_(state) {}

HostSession::~HostSession() = default;

void HostSession::check_open() const {
  if (sealed_ != nullptr) throw SessionStateError("the session is sealed");
}

HostSession::Sealed& HostSession::sealed() const {
  if (sealed_ == nullptr) throw SessionStateError("the session is not sealed yet");
  if (poisoned_) {
    throw SessionPoisoned(
        "an earlier update, write or load failed halfway; load a saved file into a new session");
  }
  if (running_ != nullptr) {
    throw SessionStateError("an update is under way; take its parts until there is none");
  }
  return *sealed_;
}

const SessionParameter& HostSession::trainable(std::uint32_t number) const {
  const SessionParameter& parameter = space_.parameter(number);
  if (parameter.unit < 0) {
    throw InputError("the parameter '" + parameter.options.name +
                     "' is frozen: the session keeps nothing of it");
  }
  return parameter;
}

std::uint32_t HostSession::add_group(const GroupOptions& options) {
  check_open();
  return space_.add_group(options);
}

std::uint32_t HostSession::add_unit(const std::string& name) {
  check_open();
  return space_.add_unit(name);
}

std::uint32_t HostSession::add_parameter(const ParameterOptions& options) {
  check_open();
  return space_.add_parameter(options);
}

void HostSession::set_group(std::uint32_t group, const GroupOptions& options) {
  if (sealed_ != nullptr) static_cast<void>(sealed());
  space_.set_group(group, options);
  if (sealed_ != nullptr) sealed_->table = model::ParameterTable(space_.space(), space_.rules());
}

void HostSession::seal() {
  check_open();
  space_.make_units();
  auto made = std::make_unique<Sealed>(*engine_, space_, place_);
  for (const SessionParameter& parameter : space_.parameters()) {
    if (parameter.unit < 0 || parameter.options.data == nullptr) continue;
    const std::uint64_t elem_bytes = dtype_bytes(parameter.options.dtype);
    std::memcpy(
        made->address(parameter.unit, StateKind::kWeight) + parameter.first_elem * elem_bytes,
        parameter.options.data, parameter.elems * elem_bytes);
  }
  for (std::size_t unit = 0; unit < space_.space().unit_count(); ++unit) {
    made->fill_state(static_cast<std::int32_t>(unit), space_.space().layout(unit).elems());
  }
  given_.assign(space_.parameters().size(), false);
  sealed_ = std::move(made);
}

std::byte* HostSession::home(std::uint32_t number, StateKind kind) {
  SLUICE_CHECK(kind == StateKind::kWeight || kind == StateKind::kGradient);
  Sealed& inner = sealed();
  const SessionParameter& parameter = trainable(number);
  return inner.address(parameter.unit, kind) +
         parameter.first_elem * dtype_bytes(parameter.options.dtype);
}

void HostSession::give_gradient(std::uint32_t number, const void* data) {
  Sealed& inner = sealed();
  std::byte* const into = home(number, StateKind::kGradient);
  const SessionParameter& parameter = trainable(number);
  const DType dtype = parameter.options.dtype;
  if (data == into) {
    // The program wrote it there.
  } else if (given_[number]) {
    inner.kernels->fold(into, data, dtype, static_cast<std::int64_t>(parameter.elems));
  } else {
    std::memcpy(into, data, parameter.elems * dtype_bytes(dtype));
  }
  given_[number] = true;
}

// Checks that an update may begin, and sets its scalars.
HostSession::Sealed& HostSession::begin(const UpdateRequest& request) {
  Sealed& inner = sealed();
  const std::vector<SessionParameter>& all = space_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].unit >= 0 && !given_[i]) {
      throw SessionStateError("the parameter '" + all[i].options.name +
                              "' has no gradient; give it one (of zeros, where it was not used)");
    }
  }
  runtime::StepScalars scalars;
  scalars.update.lr = 1;  // times the segments' own
  scalars.update.step = static_cast<std::int64_t>(updates_ + 1);
  scalars.pending_update = scalars.update;
  scalars.clip = request.max_norm;
  scalars.loss_scale = 1 / request.grad_scale;
  scalars.skip_overflow = true;
  inner.operations.set_scalars(scalars);
  return inner;
}

// The pass has ended well.
void HostSession::conclude() {
  given_.assign(given_.size(), false);
  const runtime::StepResults& results = sealed_->operations.results();
  grad_norm_ = results.grad_norm;
  if (results.overflow) {
    // Without a tensor the gradients are finite, and their products with the scale are not.
    throw GradientNotFinite((results.overflowed_tensor.empty()
                                 ? std::string("the gradients times grad_scale pass fp32's range")
                                 : "the norm of the gradients is not finite, first that of '" +
                                       results.overflowed_tensor + "'") +
                            "; the update was not made, and the gradients are dropped");
  }
  ++updates_;
}

// Runs the pass; a failed one is in the trace as far as it came. Returns its seconds.
double HostSession::run_update(Sealed& inner) {
  if (!engine_->trace().is_recording()) return inner.executor.run(inner.program).seconds;
  TraceRecorder trace;
  try {
    const auto step = static_cast<std::uint32_t>(updates_ + 1);
    const double seconds = inner.executor.run(inner.program, &trace, step).seconds;
    engine_->trace().append(trace);
    return seconds;
  } catch (...) {
    engine_->trace().append(trace);
    throw;
  }
}

double HostSession::update(const UpdateRequest& request) {
  sealed();  // a poisoned session says so first
  if (space_.has_caller_groups()) {
    throw SessionStateError(
        "the program updates some parameters itself; begin an update and take "
        "its parts");
  }
  Sealed& inner = begin(request);
  try {
    update_seconds_ = run_update(inner);
  } catch (...) {
    poisoned_ = true;
    throw;
  }
  conclude();
  return grad_norm_;
}

void HostSession::begin_update(const UpdateRequest& request) {
  Sealed& inner = begin(request);
  auto running = std::make_unique<Running>(engine_->options().deadline_s);
  inner.runner.set_exchange(&running->exchange);
  running->pass = start_thread("host update", [this, &inner, &made = *running] {
    try {
      made.seconds = run_update(inner);
      made.exchange.finish(nullptr);
    } catch (...) {
      made.exchange.finish(std::current_exception());
    }
  });
  running_ = std::move(running);
}

std::optional<CallerPart> HostSession::next_part() {
  if (running_ == nullptr) {
    static_cast<void>(sealed());
    throw SessionStateError("no update is under way; begin one");
  }
  std::optional<CallerPart> part;
  try {
    part = running_->exchange.next();
  } catch (...) {
    poisoned_ = true;
    running_.reset();
    throw;
  }
  if (part) {
    // The clip factor came before the first part.
    grad_norm_ = sealed_->operations.results().grad_norm;
    return part;
  }
  update_seconds_ = running_->seconds;
  running_.reset();
  conclude();
  return std::nullopt;
}

kernels::StateLayout HostSession::layout(std::uint32_t number, StateKind kind) const {
  Sealed& inner = sealed();
  const SessionParameter& parameter = trainable(number);
  if (kind == StateKind::kWeight || kind == StateKind::kGradient) {
    return {kernels::StateExtent::kPerElement, parameter.options.dtype};
  }
  const kernels::StateLayout found =
      kernels::state_layout(inner.table.options(static_cast<std::size_t>(parameter.unit)), kind);
  if (found.extent == kernels::StateExtent::kAbsent) {
    throw InputError("the parameter '" + parameter.options.name + "' has no " +
                     std::string(state_kind_name(kind)) + " by its group's rule");
  }
  return found;
}

namespace {

// Calls part(begin, end, first, count) for windows of whole blocks of the unit: elements
// [begin, end) of the unit, of which `count` from the parameter's `first` on are wanted.
template <typename Part>
void for_windows(const SessionParameter& parameter, std::uint64_t unit_elems, std::uint64_t first,
                 std::uint64_t count, const Part& part) {
  constexpr std::uint64_t kWindow = runtime::StateStore::kWindowElems;
  std::uint64_t at = parameter.first_elem + first;
  const std::uint64_t last = at + count;
  while (at < last) {
    const std::uint64_t begin = at / kLawBlockElems * kLawBlockElems;
    const std::uint64_t end = std::min(begin + kWindow, unit_elems);
    const std::uint64_t wanted = std::min(end, last) - at;
    part(begin, end, at - parameter.first_elem, wanted);
    at += wanted;
  }
}

void check_range(const SessionParameter& parameter, std::uint64_t first, std::uint64_t count) {
  if (first <= parameter.elems && count <= parameter.elems - first) return;
  throw InputError("the parameter '" + parameter.options.name + "' has " +
                   std::to_string(parameter.elems) + " elements, not " + std::to_string(count) +
                   " from " + std::to_string(first) + " on");
}

}  // namespace

void HostSession::read(std::uint32_t number, StateKind kind, std::uint64_t first,
                       std::uint64_t count, std::byte* into) {
  Sealed& inner = sealed();
  const std::uint64_t elem_bytes = dtype_bytes(layout(number, kind).dtype);
  const SessionParameter& parameter = trainable(number);
  check_range(parameter, first, count);
  const std::array<StateKind, 1> kinds{kind};
  for_windows(
      parameter, space_.space().layout(static_cast<std::size_t>(parameter.unit)).elems(), first,
      count, [&](std::uint64_t begin, std::uint64_t end, std::uint64_t from, std::uint64_t wanted) {
        inner.store.visit(kinds, parameter.unit, begin, end, runtime::StateStore::Access::kRead,
                          [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> data) {
                            std::memcpy(
                                into + (from - first) * elem_bytes,
                                data[0] + (parameter.first_elem + from - begin) * elem_bytes,
                                wanted * elem_bytes);
                          });
      });
}

// State on storage comes and goes by whole blocks, so the neighbours are read first. A window of
// weights is followed by its masters: a failure leaves whole windows, some old and some new.
void HostSession::write(std::uint32_t number, StateKind kind, std::uint64_t first,
                        std::uint64_t count, const std::byte* from) {
  Sealed& inner = sealed();
  const std::uint64_t elem_bytes = dtype_bytes(layout(number, kind).dtype);
  const SessionParameter& parameter = trainable(number);
  check_range(parameter, first, count);
  const kernels::OptimizerOptions& options =
      inner.table.options(static_cast<std::size_t>(parameter.unit));
  const bool sets_master = kind == StateKind::kWeight && options.has_master();
  bool changed = false;
  const auto update = [&](StateKind of, std::uint64_t begin, std::uint64_t end,
                          const auto& change) {
    const std::array<StateKind, 1> kinds{of};
    inner.store.visit(kinds, parameter.unit, begin, end, runtime::StateStore::Access::kUpdate,
                      [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> data) {
                        changed = true;
                        change(data[0]);
                      });
  };
  try {
    for_windows(
        parameter, space_.space().layout(static_cast<std::size_t>(parameter.unit)).elems(), first,
        count, [&](std::uint64_t begin, std::uint64_t end, std::uint64_t at, std::uint64_t wanted) {
          const std::byte* const source = from + (at - first) * elem_bytes;
          const std::uint64_t offset = parameter.first_elem + at - begin;
          update(kind, begin, end, [&](std::byte* window) {
            std::memcpy(window + offset * elem_bytes, source, wanted * elem_bytes);
          });
          if (!sets_master) return;
          const DType master = kernels::state_layout(options, StateKind::kMaster).dtype;
          update(StateKind::kMaster, begin, end, [&](std::byte* window) {
            store_masters(options, source, wanted, window + offset * dtype_bytes(master));
          });
        });
  } catch (...) {
    poisoned_ = changed;
    throw;
  }
  if (kind == StateKind::kGradient && count == parameter.elems) given_[number] = true;
}

void HostSession::set_update_count(std::uint64_t updates) {
  static_cast<void>(sealed());
  if (updates > kMostUpdates) throw InputError("updates is above 2^62");
  updates_ = updates;
}

void HostSession::save(const std::string& path) {
  Sealed& inner = sealed();
  const std::string temporary = path + ".tmp";
  inner.files.save(temporary, {{kUpdatesNote, std::to_string(updates_)}});
  rename_durably(temporary, path);
}

void HostSession::load(const std::string& path) {
  Sealed& inner = sealed();
  const checkpoint::SafetensorsReader reader(path);
  checkpoint::ModelState::check(reader, space_.space(), inner.table);
  const auto note = reader.metadata().find(kUpdatesNote);
  std::uint64_t updates = 0;
  bool known = note != reader.metadata().end();
  if (known) {
    const char* const end = note->second.data() + note->second.size();
    const auto parsed = std::from_chars(note->second.data(), end, updates);
    known = parsed.ec == std::errc() && parsed.ptr == end && updates <= kMostUpdates;
  }
  if (!known) throw InputError(path + ": its metadata do not say how many updates it has");
  try {
    inner.files.load(reader);
  } catch (...) {
    poisoned_ = true;
    throw;
  }
  updates_ = updates;
  given_.assign(given_.size(), false);
}

HostSession::Statistics HostSession::statistics() const {
  Statistics statistics;
  statistics.updates = updates_;
  statistics.update_seconds = update_seconds_;
  if (sealed_ == nullptr) return statistics;
  const std::vector<Tier>& tiers = sealed_->plan.options.placement.optimizer;
  statistics.planned_bytes = sealed_->plan.need.peak_bytes();
  statistics.units = tiers.size();
  statistics.stored_units =
      static_cast<std::uint64_t>(std::count(tiers.begin(), tiers.end(), Tier::kStorage));
  if (sealed_->storage != nullptr) {
    const offload::StorageCounters counters = sealed_->storage->counters();
    statistics.storage_read_bytes = counters.read_bytes;
    statistics.storage_write_bytes = counters.write_bytes;
  }
  return statistics;
}

}  // namespace sluice::host
