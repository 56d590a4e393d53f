// The commits of a session: the directory with its lock, the log, and the way back.
//
// All state of such a session has two copies on storage (runtime/durable_state.hpp), in files that
// stay when the session ends. A commit flushes them and appends a record to the log in the
// directory. So the state that a commit found is whole until the next one, whatever happens in
// between. The directory has the commits of one session at a time: files of an earlier one go once
// this one has committed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "allocator/ledger.hpp"
#include "engine/checkpoint/durable_recovery.hpp"
#include "engine/checkpoint/durable_retire.hpp"
#include "engine/host/host_engine.hpp"
#include "engine/host/session_space.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/run/run_lock.hpp"
#include "engine/runtime/durable_state.hpp"
#include "offload/state_log.hpp"

namespace sluice::host {

class SessionCommits {
 public:
  // The room of the log of a session with so many units. Throws InputError if the engine has no
  // storage or `directory` is none.
  static std::uint64_t log_bytes(const HostEngine& engine, const std::string& directory,
                                 std::size_t units);

  // Locks the directory, removes files of sessions that were killed before their first commit, and
  // makes the log. Throws InputError if another session commits there, OutOfMemory and IoError.
  SessionCommits(HostEngine& engine, offload::StorageEngine& storage, const std::string& directory,
                 const RunId& run, std::uint64_t log_bytes);

  const std::string& directory() const { return directory_; }
  offload::StateLog& log() { return *log_; }
  // The files that hold the state. They are removed with this object if nothing was committed.
  void watch(const offload::StripedSpace& space);
  // Makes the record of a commit after so many updates. fingerprint: of the parameters.
  runtime::DurableState::Record record(std::uint64_t updates, const std::string& fingerprint,
                                       offload::TaggedSpace& storage);
  // A commit has ended: the files of earlier sessions go.
  void retire_others();

 private:
  HostEngine& engine_;
  const std::string directory_;
  run::RunLock lock_;
  allocator::Reservation log_charge_;
  checkpoint::UncommittedFiles files_;
  std::unique_ptr<offload::StateLog> log_;
  bool has_retired_ = false;
};

// Names, places and formats of all trainable parameters, in 32 hex digits: state moves only between
// sessions of equal ones.
std::string parameter_fingerprint(const SessionSpace& space, const model::ParameterTable& table);

// The newest commit in `directory` with data that verify. storage_paths: searched for files that
// have moved. Throws InputError if there is none, or if the data of a newer one are not there.
checkpoint::DurableFound find_commit(const std::string& directory,
                                     const std::vector<std::string>& storage_paths);

}  // namespace sluice::host
