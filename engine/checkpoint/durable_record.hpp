// The record of a durable run's commit, and the names of the files that it speaks of.
//
// A durable run writes nothing for a checkpoint but a record in its log DIR/state-RUN.log
// (offload/state_log.hpp): the state on storage is the checkpoint. A record is a manifest
// (manifest.hpp) with two more members: `space`, the data files, and `homes`, where in them each
// kind of state of each unit lies, with a digest. A rank of a tensor group adds `boxes`: the parts
// of tensors that its units hold. RUN is a run id; the data files carry it too
// (StripedSpace::file_paths). Records are read as untrusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/manifest.hpp"
#include "engine/model/parameter_space.hpp"
#include "engine/runtime/durable_state.hpp"

namespace sluice::checkpoint {

// A slice of a tensor that a rank of a tensor group has, and its place in the unit's element space.
struct SavedSlice {
  std::int32_t unit = -1;
  std::string tensor;
  std::uint64_t first_elem = 0;
  model::TensorSlice slice;
  bool operator==(const SavedSlice&) const = default;
};
// The slices of all parts of tensors in these units.
std::vector<SavedSlice> slices_of(const model::ParameterSpace& space,
                                  const std::set<std::int32_t>& units);
// The units that have homes.
std::set<std::int32_t> units_of(const std::vector<runtime::SavedHome>& homes);

struct SavedState {
  RunId run;        // seeds the tags of its blocks
  std::string log;  // the path of its log when the record was written
  // The file id of that log, which alone owns the data: a rename keeps the id, and a copy has
  // another. Empty: not known.
  std::string log_id;
  std::vector<std::string> files;  // in the order of their stripes
  std::uint64_t space_bytes = 0;
  std::vector<runtime::SavedHome> homes;
  std::vector<std::uint32_t> shares;  // of each file in a round of stripes
  std::uint32_t ranks = 1;            // that share the state: so many logs make a commit
  // The boxes of a tensor group's rank, of the units that it has homes of.
  std::vector<SavedSlice> slices = {};

  bool operator==(const SavedState&) const = default;
};

// manifest: without `files` and `weights_hash`.
std::string format_state_record(const CheckpointManifest& manifest, const SavedState& state);
// Throws InputError naming `name` and the member.
void parse_state_record(std::string_view text, const std::string& name,
                        CheckpointManifest& manifest, SavedState& state);
// Throws InputError if a record in `log` belongs to another run. A copied record would name the
// other run's files.
void check_record_is_own(const SavedState& state, const std::string& log);

std::string state_log_path(const std::string& directory, const std::string& run_id);
// Returns the run id in a log's name; empty if the name is not that of a log.
std::string run_of_log(const std::string& log);
// All logs in `directory`, sorted. IoError.
std::vector<std::string> logs_in(const std::string& directory);

// The data files of a durable run in the given directories.
std::vector<std::filesystem::path> data_of_run(const std::string& run_id,
                                               const std::vector<std::string>& directories);

}  // namespace sluice::checkpoint
