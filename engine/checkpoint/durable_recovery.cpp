#include "engine/checkpoint/durable_recovery.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>

#include "base/error.hpp"
#include "base/log.hpp"
#include "engine/checkpoint/rank_path.hpp"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kWindowBytes = 1 << 20;

// Throws InputError if the data of a home differ from the committed ones.
void verify_home(offload::StripedSpace& space, const RunId& run, const runtime::SavedHome& home) {
  SavedHomeReader reader(space, run, home);
  std::vector<std::byte> window(
      std::max(home.block_bytes, kWindowBytes / home.block_bytes * home.block_bytes));
  for (std::uint64_t at = 0; at < home.bytes; at += window.size()) {
    reader.read(window.data(), std::min<std::uint64_t>(window.size(), home.bytes - at));
  }
  reader.finish();
}

// Replaces each path by the place where the file is now. That is one of this run's paths if the
// name exists there (a run directory that was moved or copied takes its data along), else the path
// in the record.
void find_files(std::vector<std::string>& files, const std::vector<std::string>& storage_paths) {
  for (std::string& file : files) {
    const fs::path name = fs::path(file).filename();
    for (const std::string& path : storage_paths) {
      if (!fs::exists(fs::path(path) / name)) continue;
      file = (fs::path(path) / name).string();
      break;
    }
  }
}

}  // namespace

void SavedHomeReader::read(std::byte* data, std::uint64_t bytes) {
  SLUICE_CHECK(bytes <= home_.bytes - cursor_ && cursor_ % home_.block_bytes == 0);
  space_.transfer(offload::StorageOp::kRead, home_.offset + cursor_, data, bytes);
  for (std::uint64_t at = 0; at < bytes; at += home_.block_bytes) {
    tags_.push_back(offload::tag_of(run_, home_.key, tags_.size(), home_.version, data + at,
                                    std::min(home_.block_bytes, bytes - at)));
  }
  cursor_ += bytes;
}

void SavedHomeReader::finish() const {
  SLUICE_CHECK(cursor_ == home_.bytes);
  if (offload::digest_of(tags_) == home_.digest) return;
  throw InputError("the " + std::string(state_kind_name(home_.kind)) + " of unit " +
                   std::to_string(home_.unit) + " is not what was committed");
}

namespace {

// Throws the reason for which the commit cannot be used.
void verify(offload::StorageEngine& engine, const DurableFound& found) {
  offload::StripedSpace space(engine, found.state.files, found.state.space_bytes,
                              found.state.shares);
  for (const runtime::SavedHome& home : found.state.homes)
    verify_home(space, found.state.run, home);
}

// Whether the data are at fault: a file is cut short, or the disk cannot read it. Other errors say
// nothing about the data.
bool is_of_the_data(const IoError& error) {
  return error.error_number == 0 || error.error_number == EIO;
}

// Verifies once more if the disk could not read: a passing error says nothing about the data.
void verify_again_if_unreadable(offload::StorageEngine& engine, const DurableFound& found) {
  try {
    return verify(engine, found);
  } catch (const IoError& error) {
    if (!is_of_the_data(error)) throw;
    log(LogLevel::kWarning, std::string(error.what()) + "; it is read once more");
  }
  verify(engine, found);
}

// The first file that does not exist; empty: all do.
std::string absent_file(const std::vector<std::string>& files) {
  std::error_code error;
  const auto at = std::find_if(files.begin(), files.end(), [&](const std::string& file) {
    return fs::status(file, error).type() == fs::file_type::not_found;
  });
  return at == files.end() ? std::string() : *at;
}

}  // namespace

namespace {

// A sentence without the name that it opens with.
std::string without_name(const std::string& sentence, const std::string& name) {
  return sentence.starts_with(name) ? sentence.substr(name.size()) : sentence;
}

// The records of one log with data that verify, newest first; with `only_newest` the first of them.
std::vector<DurableFound> recover_records(offload::StorageEngine& engine, const std::string& log,
                                          const std::vector<std::string>& storage_paths,
                                          bool only_newest, std::vector<PassedOver>& passed_over) {
  const offload::StateLog::Contents contents = offload::StateLog::read(engine, log);
  if (contents.unreadable_areas > 0) {
    passed_over.push_back(
        {log, log + ": " + std::to_string(contents.unreadable_areas) +
                  " of its two records cannot be read: cut short when it was written, damaged "
                  "since, or of another version"});
  }
  if (contents.empty() && !data_of_run(run_of_log(log), storage_paths).empty()) {
    passed_over.push_back({log, log + " is empty, and data of its run are there"});
  }
  std::vector<DurableFound> all;
  for (const offload::StateLog::Record& record : contents.records) {
    DurableFound found{log, {}, {}};
    PassedOver passed{log, log + ", commit " + std::to_string(record.sequence) + ": "};
    try {
      parse_state_record(record.text, log, found.manifest, found.state);
      check_record_is_own(found.state, log);
      passed.step = found.manifest.step;
      find_files(found.state.files, storage_paths);
      verify_again_if_unreadable(engine, found);
      all.push_back(std::move(found));
      if (only_newest) break;
      continue;
    } catch (const InputError& error) {
      const std::string absent = absent_file(found.state.files);
      passed.absent = !absent.empty();
      passed.why += passed.absent ? "its data '" + absent + "' is not there"
                                  : without_name(error.what(), log + ": ");
    } catch (const IoError& error) {
      if (!is_of_the_data(error)) throw;
      passed.why += error.what();
    }
    passed_over.push_back(std::move(passed));
  }
  return all;
}

// A pipe or a directory of that name was never a log.
PassedOver pass_over(const std::string& log, const InputError& error) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(log, ignored).type();
  const bool may_be_a_log = type == fs::file_type::regular || type == fs::file_type::symlink;
  return {log, log + ": " + error.what(), -1, may_be_a_log};
}

}  // namespace

std::optional<DurableFound> recover_state(offload::StorageEngine& engine, const std::string& log,
                                          const std::vector<std::string>& storage_paths,
                                          std::vector<PassedOver>& passed_over) {
  std::vector<DurableFound> found =
      recover_records(engine, log, storage_paths, /*only_newest=*/true, passed_over);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::optional<DurableFound> find_durable(const std::string& directory,
                                         const std::vector<std::string>& storage_paths,
                                         std::vector<PassedOver>& passed_over) {
  std::optional<DurableFound> newest;
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  for (const std::string& log : logs_in(directory)) {
    try {
      auto found = recover_state(*engine, log, storage_paths, passed_over);
      if (!found || (newest && newest->manifest.step >= found->manifest.step)) continue;
      newest = std::move(found);
    } catch (const InputError& error) {
      passed_over.push_back(pass_over(log, error));
    }
  }
  return newest;
}

namespace {

// The commits of each rank of one run.
using CommitsByRank = std::vector<std::vector<DurableFound>>;

std::string why_not_of_all(const DurableFound& commit, std::size_t logs) {
  const std::string text =
      "commit of step " + std::to_string(commit.manifest.step) + " in '" + commit.log + "': ";
  if (logs >= commit.state.ranks) return text + "the job ended before all ranks had it";
  return text + "only " + std::to_string(logs) + " of its " + std::to_string(commit.state.ranks) +
         " ranks have a log; the job ended before the others had one, or theirs must be put back";
}

// The newest step that every rank has, of all ranks. A job that ended between the first commits of
// two ranks left fewer logs than its record has ranks. incomplete: gets newer commits that some
// rank lacks, unless the records of these ranks were passed over for a reason of their own.
std::optional<DurableFound> newest_of_all(CommitsByRank& ranks,
                                          const std::vector<PassedOver>& passed_over,
                                          std::vector<PassedOver>& incomplete) {
  const auto at_step = [](std::vector<DurableFound>& commits, std::int64_t step) {
    return std::find_if(commits.begin(), commits.end(),
                        [&](const DurableFound& commit) { return commit.manifest.step == step; });
  };
  const auto has_newest = [](const auto& commits) { return !commits.empty(); };
  const auto first = std::find_if(ranks.begin(), ranks.end(), has_newest);
  if (first == ranks.end()) return std::nullopt;
  for (DurableFound& newest : *first) {
    const std::int64_t step = newest.manifest.step;
    const bool all = ranks.size() >= newest.state.ranks &&
                     std::all_of(ranks.begin(), ranks.end(), [&](auto& commits) {
                       return at_step(commits, step) != commits.end();
                     });
    if (!all) {
      const bool known =
          std::any_of(passed_over.begin(), passed_over.end(), [&](const PassedOver& passed) {
            return run_of_log(passed.log) == run_of_log(newest.log) &&
                   (passed.step == step || passed.step < 0);
          });
      if (!known) incomplete.push_back({newest.log, why_not_of_all(newest, ranks.size())});
      continue;
    }
    DurableFound found = std::move(*at_step(ranks.front(), step));
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
      found.other_ranks.push_back(std::move(*at_step(ranks[rank], step)));
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<DurableFound> find_durable_of_ranks(const std::string& directory,
                                                  const std::vector<std::string>& storage_paths,
                                                  std::vector<PassedOver>& passed_over) {
  std::error_code ignored;
  if (!fs::is_directory(rank_path(directory, 1), ignored)) {
    return find_durable(directory, storage_paths, passed_over);
  }
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  std::map<std::string, CommitsByRank> runs;  // by run id
  for (int rank = 0; fs::is_directory(rank_path(directory, rank), ignored); ++rank) {
    for (const std::string& log : logs_in(rank_path(directory, rank))) {
      try {
        runs[run_of_log(log)].push_back(recover_records(
            *engine, log, rank_paths(storage_paths, rank), /*only_newest=*/false, passed_over));
      } catch (const InputError& error) {
        passed_over.push_back(pass_over(log, error));
      }
    }
  }
  std::optional<DurableFound> newest;
  std::vector<PassedOver> incomplete;
  for (auto& [run, ranks] : runs) {
    auto found = newest_of_all(ranks, passed_over, incomplete);
    if (!found || (newest && newest->manifest.step >= found->manifest.step)) continue;
    newest = std::move(found);
  }
  // A killed job leaves such a commit. If nothing else is found it is the reason, and else a note.
  if (!newest) {
    passed_over.insert(passed_over.end(), incomplete.begin(), incomplete.end());
    return newest;
  }
  for (const PassedOver& commit : incomplete) log(LogLevel::kInfo, "passed over: " + commit.why);
  return newest;
}

std::vector<std::string> logs_of(const DurableFound& found) {
  std::vector<std::string> logs{found.log};
  for (const DurableFound& rank : found.other_ranks) logs.push_back(rank.log);
  return logs;
}

DurableFound open_durable(const std::vector<std::string>& logs, std::int64_t step,
                          const std::vector<std::string>& storage_paths) {
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  std::vector<DurableFound> ranks;
  for (const std::string& log : logs) {
    for (const offload::StateLog::Record& record : offload::StateLog::read(*engine, log).records) {
      DurableFound found{log, {}, {}};
      parse_state_record(record.text, log, found.manifest, found.state);
      if (found.manifest.step != step) continue;
      check_record_is_own(found.state, log);
      find_files(found.state.files, rank_paths(storage_paths, static_cast<int>(ranks.size())));
      ranks.push_back(std::move(found));
      break;
    }
    if (ranks.empty() || ranks.back().log != log) {
      throw InputError(log + ": has no commit of step " + std::to_string(step));
    }
  }
  DurableFound found = std::move(ranks.front());
  found.other_ranks.assign(std::make_move_iterator(ranks.begin() + 1),
                           std::make_move_iterator(ranks.end()));
  return found;
}

namespace {

std::string name_of_home(StateKind kind, std::int32_t unit) {
  return std::string(state_kind_name(kind)) + " of unit " + std::to_string(unit);
}

// The saved ranges of the home's kind and unit must cover it.
void check_covered(const DurableFound& found, const schedule::Buffer& home) {
  std::vector<schedule::ElemRange> ranges;
  const auto collect = [&](const DurableFound& rank) {
    for (const runtime::SavedHome& saved : rank.state.homes) {
      if (saved.kind != home.kind || saved.unit != home.unit) continue;
      if (saved.dtype != home.dtype) {
        throw InputError(rank.log + ": is of another model: the " +
                         name_of_home(home.kind, home.unit) + " is of another dtype");
      }
      ranges.push_back(saved.range());
    }
  };
  collect(found);
  for (const DurableFound& rank : found.other_ranks) collect(rank);
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::uint64_t covered = home.first_elem;
  for (const schedule::ElemRange& range : ranges) {
    if (range.begin <= covered) covered = std::max(covered, range.end);
  }
  if (covered >= home.first_elem + home.elems) return;
  throw InputError(found.log + ": a part of the " + name_of_home(home.kind, home.unit) +
                   " is missing: put the directories rank-1, rank-2 and so on back next to it, or "
                   "this is another model");
}

}  // namespace

void check_homes(const DurableFound& found, const std::vector<const schedule::Buffer*>& homes,
                 bool is_alone) {
  if (!is_alone || !found.other_ranks.empty()) {
    for (const schedule::Buffer* home : homes) check_covered(found, *home);
    return;
  }
  for (const schedule::Buffer* home : homes) {
    const auto same = [&](const runtime::SavedHome& saved) {
      return saved.kind == home->kind && saved.unit == home->unit;
    };
    const auto& all = found.state.homes;
    const auto at = std::find_if(all.begin(), all.end(), same);
    if (at != all.end() && at->dtype == home->dtype && at->bytes == home->bytes) continue;
    throw InputError(found.log + ": is of another model: the " +
                     name_of_home(home->kind, home->unit) +
                     (at == all.end() ? " is missing" : " is of another size or dtype"));
  }
  if (found.state.homes.size() != homes.size()) {
    throw InputError(found.log + ": is of another model: it has " +
                     std::to_string(found.state.homes.size()) + " homes of state, this one " +
                     std::to_string(homes.size()));
  }
}

}  // namespace sluice::checkpoint
