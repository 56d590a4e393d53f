// Recovery of a durable run: finds the newest commit with data that verify.
//
// A commit counts when its record can be read and every block of data has the tag that was
// committed. A log keeps two records. The newest is tried first. If its data do not verify, the one
// before is taken, and the newest is reported as passed over.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/durable_record.hpp"
#include "offload/state_log.hpp"

namespace sluice::checkpoint {

struct DurableFound {
  std::string log;
  CheckpointManifest manifest;
  SavedState state;
  // The commits of the same step of the run's other ranks, which hold other ranges.
  std::vector<DurableFound> other_ranks = {};
};

// Reads one home of a kept space from its begin to its end, and compares it with the commit.
class SavedHomeReader {
 public:
  // All arguments must outlive the reader.
  SavedHomeReader(offload::StripedSpace& space, const RunId& run, const runtime::SavedHome& home)
      : space_(space), run_(run), home_(home) {}
  // The next `bytes`: whole blocks, or up to the end. IoError.
  void read(std::byte* data, std::uint64_t bytes);
  // Call once all of it has been read. Throws InputError if the data differ from the commit.
  void finish() const;

 private:
  offload::StripedSpace& space_;
  const RunId& run_;
  const runtime::SavedHome& home_;
  std::uint64_t cursor_ = 0;
  std::vector<offload::BlockTag> tags_;
};

// A commit, or a whole log, that cannot be taken.
struct PassedOver {
  std::string log;
  std::string why;         // a sentence without its end
  std::int64_t step = -1;  // of its record; -1: no record of it can be read
  // Its data are not there, or the log cannot be opened: perhaps a disk is not mounted, or it
  // belongs to another user. A resume without it may go on from an older step.
  bool absent = false;
};

// Returns the newest record of one log with data that verify, or nothing. `passed_over` gets the
// others. storage_paths: searched for files that have left the place in the record. Data that are
// cut short, or that the disk twice cannot read (EIO), do not verify. Any other IoError says
// nothing about the data and is thrown.
std::optional<DurableFound> recover_state(offload::StorageEngine& engine, const std::string& log,
                                          const std::vector<std::string>& storage_paths,
                                          std::vector<PassedOver>& passed_over);

// The newest step of all logs in `directory`.
std::optional<DurableFound> find_durable(const std::string& directory,
                                         const std::vector<std::string>& storage_paths,
                                         std::vector<PassedOver>& passed_over);

// Finds the newest step of a run of any number of ranks, whose other ranks have directories beneath
// `directory` and each storage path (rank_path.hpp). Of a run of several ranks it is the newest
// step of which all have a commit that verifies.
std::optional<DurableFound> find_durable_of_ranks(const std::string& directory,
                                                  const std::vector<std::string>& storage_paths,
                                                  std::vector<PassedOver>& passed_over);
// The logs of a commit, first rank first, for open_durable() on another rank.
std::vector<std::string> logs_of(const DurableFound& found);
// A commit that another rank has found and verified: only its records are read. storage_paths: of
// the first rank. Throws InputError if a log has no record of the step.
DurableFound open_durable(const std::vector<std::string>& logs, std::int64_t step,
                          const std::vector<std::string>& storage_paths);

// Throws InputError naming the first home that this run has otherwise: `homes` are its own. The
// homes of several ranks need only cover them.
void check_homes(const DurableFound& found, const std::vector<const schedule::Buffer*>& homes,
                 bool is_alone = true);

}  // namespace sluice::checkpoint
