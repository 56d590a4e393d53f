#include "engine/host/sealed_session.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "collectives/communicator.hpp"
#include "engine/host/parameter_state.hpp"

namespace sluice::host {
namespace {

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
  return plan.need.storage_bytes == 0 ? nullptr : engine.make_storage();
}

std::uint64_t log_bytes(const HostEngine& engine, const SessionSpace& space,
                        const std::string& commit_path) {
  if (commit_path.empty()) return 0;
  return SessionCommits::log_bytes(engine, commit_path, space.space().unit_count());
}

}  // namespace

SealedSession::SealedSession(HostEngine& engine, const SessionSpace& space, StatePlace place,
                             const std::string& commit_path)
    : engine_(engine),
      kernels_(kernels::make_host_state_kernels(engine.options().threads)),
      table_(space.space(), space.rules()),
      model_(make_state_model(space.space(), space.unit_names(), table_, *kernels_)),
      plan_(plan_session(model_, bytes_left(engine.ledger()), place,
                         log_bytes(engine, space, commit_path))),
      alone_(collectives::make_single_communicator()),
      storage_(make_storage(engine, plan_)),
      run_(make_run_id()),
      commits_(commit_path.empty()
                   ? nullptr
                   : std::make_unique<SessionCommits>(engine, *storage_, commit_path, run_,
                                                      plan_.need.log_bytes)),
      memory_(engine.device(), engine.ledger(), storage_.get(), engine.options().storage_paths,
              plan_.need, run_, /*kept=*/commits_ != nullptr),
      durable_(commits_ == nullptr
                   ? nullptr
                   : std::make_unique<runtime::DurableState>(memory_, commits_->log())),
      update_(plan_.update, memory_),
      operations_(space.space(), table_, DType::kF32),
      runner_(space, table_, operations_, *kernels_),
      executor_(engine.device(), memory_.storage(), runner_, engine.options().deadline_s,
                durable_.get()),
      store_(engine.device(), memory_, plan_.update, {model_.view, model_.pipeline, *alone_},
             durable_.get()),
      files_(space.space(), table_, store_) {
  executor_.prepare(update_);
  if (commits_ == nullptr) return;
  commits_->watch(memory_.storage().space());
  save_.emplace(plan_.save, memory_);
  executor_.prepare(*save_);
}

SealedSession::~SealedSession() = default;

std::byte* SealedSession::address(std::int32_t unit, StateKind kind) {
  for (const schedule::Buffer& buffer : plan_.update.buffers) {
    if (buffer.persistent && buffer.role == schedule::BufferRole::kState && buffer.unit == unit &&
        buffer.kind == kind && !buffer.log_copy) {
      return memory_.address(buffer);
    }
  }
  throw InternalError("the session's schedule has no such home");
}

bool SealedSession::rests_on_storage(std::int32_t unit, StateKind kind) const {
  return kind != StateKind::kWeight && kind != StateKind::kGradient &&
         plan_.options.placement.optimizer[static_cast<std::size_t>(unit)] == Tier::kStorage;
}

void SealedSession::fill_state(std::int32_t unit, std::uint64_t elems) {
  const kernels::OptimizerOptions& options = table_.options(static_cast<std::size_t>(unit));
  const std::byte* const weights = address(unit, StateKind::kWeight);
  for (const StateKind kind : kOptimizerKinds) {
    const kernels::StateLayout layout = kernels::state_layout(options, kind);
    if (layout.extent == kernels::StateExtent::kAbsent) continue;
    const std::array<StateKind, 1> kinds{kind};
    store_.visit(kinds, unit, 0, elems, runtime::StateStore::Access::kWrite,
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

void SealedSession::refresh_table(const SessionSpace& space) {
  table_ = model::ParameterTable(space.space(), space.rules());
}

double SealedSession::update(TraceRecorder* trace, std::uint32_t step) {
  if (durable_ != nullptr) durable_->begin(plan_.update, {});
  const double seconds = executor_.run(update_, trace, step).seconds;
  if (durable_ != nullptr) durable_->end();
  return seconds;
}

// Without an update since the last commit the state is copied to the other slot first: the program may
// have changed weights in their homes, and the committed ones must stay until the new record.
void SealedSession::commit(const SessionSpace& space, std::uint64_t updates) {
  SLUICE_CHECK(commits_ != nullptr);
  leave_committed_state();
  durable_->begin(plan_.save, commits_->record(updates, parameter_fingerprint(space, table_),
                                               memory_.storage()));
  executor_.run(*save_);
  durable_->end();
  commits_->retire_others();
}

// A window is read from the one slot and written to the other.
void SealedSession::leave_committed_state() {
  if (durable_ == nullptr || !durable_->is_committed()) return;
  for (std::size_t at = 0; at < model_.units.size(); ++at) {
    const auto unit = static_cast<std::int32_t>(at);
    for (const StateKind kind : kOptimizerKinds) {
      const kernels::StateLayout layout = kernels::state_layout(table_.options(at), kind);
      if (layout.extent == kernels::StateExtent::kAbsent || !rests_on_storage(unit, kind)) continue;
      const std::array<StateKind, 1> kinds{kind};
      store_.visit(kinds, unit, 0, model_.units[at].elems, runtime::StateStore::Access::kRead,
                   [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                     durable_->switch_slot();
                     store_.visit(
                         kinds, unit, begin, end, runtime::StateStore::Access::kWrite,
                         [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> copy) {
                           SLUICE_CHECK(copy[0] == data[0]);  // the one I/O window
                         });
                     durable_->switch_slot();
                   });
    }
  }
  durable_->switch_slot();
}

std::vector<const schedule::Buffer*> SealedSession::homes() const {
  std::vector<const schedule::Buffer*> homes;
  for (const schedule::Residency& residency : plan_.update.entry) {
    if (residency.kind != StateKind::kGradient) {
      homes.push_back(&plan_.update.buffers[residency.home]);
    }
  }
  return homes;
}

void SealedSession::load_home(const schedule::Buffer& home, checkpoint::SavedHomeReader& reader) {
  const std::array<StateKind, 1> kinds{home.kind};
  store_.visit(kinds, home.unit, 0, home.elems, runtime::StateStore::Access::kWrite,
               [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                 reader.read(data[0], bytes_of(home.dtype, end - begin));
               });
  reader.finish();
}

std::uint64_t SealedSession::load_commit(const SessionSpace& space, const std::string& directory,
                                         const std::function<void()>& begin) {
  std::optional<run::RunLock> lock;
  std::error_code ignored;
  if (commits_ == nullptr ||
      !std::filesystem::equivalent(directory, commits_->directory(), ignored)) {
    lock.emplace("path", directory, make_run_id());
    lock->keep_record();
  }
  const checkpoint::DurableFound found = find_commit(directory, engine_.options().storage_paths);
  if (found.manifest.data_fingerprint != parameter_fingerprint(space, table_)) {
    throw InputError(found.log + ": is of a session with other parameters, dtypes or rules");
  }
  const std::vector<const schedule::Buffer*> own = homes();
  checkpoint::check_homes(found, own);
  begin();
  leave_committed_state();
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  offload::StripedSpace from(*engine, found.state.files, found.state.space_bytes,
                             found.state.shares);
  for (const schedule::Buffer* home : own) {
    for (const runtime::SavedHome& saved : found.state.homes) {
      if (saved.kind != home->kind || saved.unit != home->unit) continue;
      checkpoint::SavedHomeReader reader(from, found.state.run, saved);
      load_home(*home, reader);
    }
  }
  return static_cast<std::uint64_t>(found.manifest.step);
}

offload::StorageCounters SealedSession::storage_counters() const {
  return storage_ == nullptr ? offload::StorageCounters{} : storage_->counters();
}

}  // namespace sluice::host
