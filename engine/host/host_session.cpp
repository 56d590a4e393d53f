#include "engine/host/host_session.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/posix_file.hpp"
#include "base/thread.hpp"
#include "base/topology.hpp"
#include "base/units.hpp"
#include "engine/host/parameter_state.hpp"
#include "engine/host/sealed_session.hpp"

namespace sluice::host {
namespace {

constexpr const char* kUpdatesNote = "updates";  // metadata of saved files
constexpr std::uint64_t kMostUpdates = std::uint64_t{1} << 62;

}  // namespace

// An update under way, of which the program makes parts.
struct HostSession::Running {
  explicit Running(double deadline_seconds) : exchange(deadline_seconds) {}
  ~Running() { exchange.abandon(); }  // then the thread is joined

  UpdateExchange exchange;
  double seconds = 0;  // of the pass, once it has finished
  std::jthread pass;
};

HostSession::HostSession(std::shared_ptr<HostEngine> engine, StatePlace state,
                         std::string commit_path)
    : engine_(std::move(engine)), place_(state), commit_path_(std::move(commit_path)) {}

HostSession::~HostSession() = default;

void HostSession::check_open() const {
  if (sealed_ != nullptr) throw SessionStateError("the session is sealed");
}

namespace {

// Weights and gradients of trained parameters lie in pinned memory under every plan. Planning takes
// time in proportion to the elements, so a session that no budget of this machine could hold is
// refused before it.
void check_homes_fit(const std::vector<SessionParameter>& parameters, std::uint64_t left_bytes) {
  std::uint64_t needed_bytes = 0;
  for (const SessionParameter& parameter : parameters) {
    if (!parameter.options.group) continue;
    needed_bytes += 2 * bytes_of(parameter.options.dtype, parameter.elems);
  }
  const std::uint64_t machine_bytes = read_host_topology().memory_bytes;
  if (needed_bytes <= machine_bytes) return;
  throw Refused("the session does not fit: its weights and gradients alone take " +
                    format_bytes_exact(needed_bytes) + " of pinned memory, and this machine has " +
                    format_bytes_exact(machine_bytes),
                Tier::kPinned, needed_bytes, left_bytes);
}

}  // namespace

SealedSession& HostSession::sealed() const {
  if (sealed_ == nullptr) throw SessionStateError("the session is not sealed yet");
  if (poisoned_) {
    throw SessionPoisoned(
        "an earlier update, write, load or commit failed halfway; load a saved file or the last "
        "commit "
        "into a new session");
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
  if (sealed_ != nullptr) sealed_->refresh_table(space_);
}

void HostSession::seal() {
  check_open();
  check_homes_fit(space_.parameters(),
                  engine_->bytes_left()[static_cast<std::size_t>(Tier::kPinned)]);
  space_.make_units();
  auto made = std::make_unique<SealedSession>(*engine_, space_, place_, commit_path_);
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
  SealedSession& inner = sealed();
  const SessionParameter& parameter = trainable(number);
  return inner.address(parameter.unit, kind) +
         parameter.first_elem * dtype_bytes(parameter.options.dtype);
}

void HostSession::give_gradient(std::uint32_t number, const void* data) {
  SealedSession& inner = sealed();
  std::byte* const into = home(number, StateKind::kGradient);
  const SessionParameter& parameter = trainable(number);
  const DType dtype = parameter.options.dtype;
  if (data == into) {
    // The program wrote it there.
  } else if (given_[number]) {
    inner.kernels().fold(into, data, dtype, static_cast<std::int64_t>(parameter.elems));
  } else {
    std::memcpy(into, data, parameter.elems * dtype_bytes(dtype));
  }
  given_[number] = true;
}

// Checks that an update may begin, and sets its scalars.
SealedSession& HostSession::begin(const UpdateRequest& request) {
  SealedSession& inner = sealed();
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
  inner.operations().set_scalars(scalars);
  return inner;
}

// The pass has ended well.
void HostSession::conclude() {
  given_.assign(given_.size(), false);
  const runtime::StepResults& results = sealed_->operations().results();
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
double HostSession::run_update(SealedSession& inner) {
  if (!engine_->trace().is_recording()) return inner.update(nullptr, 0);
  TraceRecorder trace;
  try {
    const auto step = static_cast<std::uint32_t>(updates_ + 1);
    const double seconds = inner.update(&trace, step);
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
  SealedSession& inner = begin(request);
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
  SealedSession& inner = begin(request);
  auto running = std::make_unique<Running>(engine_->options().deadline_s);
  inner.runner().set_exchange(&running->exchange);
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
    grad_norm_ = sealed_->operations().results().grad_norm;
    return part;
  }
  update_seconds_ = running_->seconds;
  running_.reset();
  conclude();
  return std::nullopt;
}

kernels::StateLayout HostSession::layout(std::uint32_t number, KeptState state) const {
  const SealedSession& inner = sealed();  // first: an open session says so
  return parameter_layout(inner.table(), trainable(number), state);
}

void HostSession::read(std::uint32_t number, KeptState state, std::uint64_t first,
                       std::uint64_t count, std::byte* into) {
  SealedSession& inner = sealed();
  read_parameter(inner, trainable(number), state, first, count, into);
}

void HostSession::write(std::uint32_t number, KeptState state, std::uint64_t first,
                        std::uint64_t count, const std::byte* from) {
  SealedSession& inner = sealed();
  const SessionParameter& parameter = trainable(number);
  bool changed = false;
  try {
    write_parameter(inner, parameter, state, first, count, from, [&changed] { changed = true; });
  } catch (...) {
    poisoned_ = changed;
    throw;
  }
  if (state.kind == StateKind::kGradient && count == parameter.elems) given_[number] = true;
}

void HostSession::set_update_count(std::uint64_t updates) {
  static_cast<void>(sealed());
  if (updates > kMostUpdates) throw InputError("updates is above 2^62");
  updates_ = updates;
}

void HostSession::save(const std::string& path) {
  SealedSession& inner = sealed();
  if (path.empty() || std::filesystem::is_directory(path)) {
    throw InputError("'" + shown(path) + "' is not a file to save to");
  }
  check_replaceable(path);
  const std::string temporary = path + ".tmp";
  inner.files().save(temporary, {{kUpdatesNote, std::to_string(updates_)}}, true);
  rename_durably(temporary, path);
}

void HostSession::commit() {
  SealedSession& inner = sealed();
  if (!inner.commits()) {
    throw SessionStateError("the session commits nothing; create it with a commit_path");
  }
  try {
    inner.commit(space_, updates_);
  } catch (...) {
    poisoned_ = true;
    throw;
  }
}

void HostSession::load_commit(const std::string& directory) {
  SealedSession& inner = sealed();
  bool changes = false;
  try {
    updates_ = inner.load_commit(space_, directory, [&changes] { changes = true; });
  } catch (...) {
    poisoned_ = changes;
    throw;
  }
  given_.assign(given_.size(), false);
}

void HostSession::load(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return load_commit(path);
  SealedSession& inner = sealed();
  const checkpoint::SafetensorsReader reader(path);
  checkpoint::ModelState::check(reader, space_.space(), inner.table());
  const auto note = reader.metadata().find(kUpdatesNote);
  std::uint64_t updates = 0;
  bool known = note != reader.metadata().end();
  if (known) {
    const char* const end = note->second.data() + note->second.size();
    const auto parsed = std::from_chars(note->second.data(), end, updates);
    known = parsed.ec == std::errc() && parsed.ptr == end && updates <= kMostUpdates;
  }
  if (!known) throw InputError(path + ": its metadata do not say how many updates it has");
  reader.check_digest();
  try {
    inner.leave_committed_state();
    inner.files().load(reader);
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
  const std::vector<Tier>& tiers = sealed_->plan().options.placement.optimizer;
  statistics.planned_bytes = sealed_->plan().need.peak_bytes();
  statistics.units = tiers.size();
  statistics.stored_units =
      static_cast<std::uint64_t>(std::count(tiers.begin(), tiers.end(), Tier::kStorage));
  const offload::StorageCounters counters = sealed_->storage_counters();
  statistics.storage_read_bytes = counters.read_bytes;
  statistics.storage_write_bytes = counters.write_bytes;
  return statistics;
}

}  // namespace sluice::host
