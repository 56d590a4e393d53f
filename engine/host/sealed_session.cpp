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

std::uint64_t log_bytes(const HostEngine& engine, const SessionSpace& space,
                        const std::string& commit_path) {
  if (commit_path.empty()) return 0;
  return SessionCommits::log_bytes(engine, commit_path, space.space().unit_count());
}

}  // namespace

SealedSession::Memory::Memory(HostEngine& engine, const SessionPlan& plan,
                              const std::string& commit_path)
    : storage(plan.need.storage_bytes == 0 ? nullptr : engine.make_storage()),
      run(make_run_id()),
      commits(commit_path.empty()
                  ? nullptr
                  : std::make_unique<SessionCommits>(engine, *storage, commit_path, run,
                                                     plan.need.fixed.log_bytes)),
      homes(engine.device(), engine.ledger(), storage.get(), engine.options().storage_paths,
            plan.need, run, /*kept=*/commits != nullptr),
      durable(commits == nullptr ? nullptr
                                 : std::make_unique<runtime::DurableState>(homes, commits->log())) {
  if (commits != nullptr) commits->watch(homes.storage().space());
}

SealedSession::Programs::Programs(const SessionPlan& plan, runtime::RunMemory& homes)
    : update(plan.update, homes) {
  if (!plan.save.instructions.empty()) save.emplace(plan.save, homes);
}

SealedSession::SealedSession(HostEngine& engine, const SessionSpace& space, StatePlace place,
                             const std::string& commit_path)
    : engine_(engine),
      kernels_(kernels::make_host_state_kernels(engine.options().threads)),
      table_(space.space(), space.rules()),
      model_(make_state_model(space.space(), space.unit_names(), table_, *kernels_)),
      plan_(
          plan_session(model_, engine.bytes_left(), place, log_bytes(engine, space, commit_path))),
      alone_(collectives::make_single_communicator()),
      memory_(engine, plan_, commit_path),
      programs_(plan_, memory_.homes),
      runner_(space, table_, *kernels_),
      executor_(engine.device(), memory_.homes.storage(), runner_, engine.options().deadline_s,
                memory_.durable.get()),
      store_(engine.device(), memory_.homes, plan_.update, {model_.view, model_.pipeline, *alone_},
             memory_.durable.get()),
      files_(space.space(), table_, store_) {
  executor_.prepare(programs_.update);
  if (programs_.save) executor_.prepare(*programs_.save);
}

SealedSession::~SealedSession() = default;

std::byte* SealedSession::address(std::int32_t unit, StateKind kind) {
  for (const schedule::Buffer& buffer : plan_.update.buffers) {
    if (buffer.persistent && buffer.role == schedule::BufferRole::kState && buffer.unit == unit &&
        buffer.kind == kind && !buffer.log_copy) {
      return memory_.homes.address(buffer);
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
  runtime::DurableState* const durable = memory_.durable.get();
  if (durable != nullptr) durable->begin(plan_.update, {});
  const double seconds = executor_.run(programs_.update, trace, step).seconds;
  if (durable != nullptr) durable->end();
  return seconds;
}

// Without an update since the last commit the state is written to the other copy first: the program
// may have changed weights in their homes, and the committed ones must stay until the new record.
void SealedSession::commit(const SessionSpace& space, std::uint64_t updates) {
  SLUICE_CHECK(commits());
  leave_committed_state();
  memory_.durable->begin(plan_.save,
                         memory_.commits->record(updates, parameter_fingerprint(space, table_),
                                                 memory_.homes.storage()));
  executor_.run(*programs_.save);
  memory_.durable->end();
  memory_.commits->retire_others();
}

// A window is read from the one copy and written to the other.
void SealedSession::leave_committed_state() {
  runtime::DurableState* const durable = memory_.durable.get();
  if (durable == nullptr || !durable->is_committed()) return;
  for (std::size_t at = 0; at < model_.units.size(); ++at) {
    const auto unit = static_cast<std::int32_t>(at);
    for (const StateKind kind : kOptimizerKinds) {
      const kernels::StateLayout layout = kernels::state_layout(table_.options(at), kind);
      if (layout.extent == kernels::StateExtent::kAbsent || !rests_on_storage(unit, kind)) continue;
      const std::array<StateKind, 1> kinds{kind};
      store_.visit(kinds, unit, 0, model_.units[at].elems, runtime::StateStore::Access::kRead,
                   [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                     durable->switch_copy();
                     store_.visit(
                         kinds, unit, begin, end, runtime::StateStore::Access::kWrite,
                         [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> copy) {
                           SLUICE_CHECK(copy[0] == data[0]);  // the one I/O buffer
                         });
                     durable->switch_copy();
                   });
    }
  }
  durable->switch_copy();
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
  if (!commits() ||
      !std::filesystem::equivalent(directory, memory_.commits->directory(), ignored)) {
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
  return memory_.storage == nullptr ? offload::StorageCounters{} : memory_.storage->counters();
}

}  // namespace sluice::host
