#include "engine/checkpoint/durable_checkpoint.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/open_beneath.hpp"
#include "base/posix_file.hpp"
#include "offload/storage_file.hpp"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kLogPrefix = "state-";
constexpr std::string_view kLogSuffix = ".log";
constexpr std::uint64_t kWindowBytes = 1 << 20;

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  const std::string text(digits.data(), end);
  return std::string(16 - text.size(), '0') + text;
}

std::optional<std::uint64_t> from_hex(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A record that was copied into another run's log would speak of its files.
void check_run(const SavedState& state, const std::string& log) {
  if (state.run.hex() != run_of_log(log)) {
    throw InputError(log + " holds a record of run " + state.run.hex() + ", not of its own");
  }
}

std::vector<std::string> logs_in(const std::string& directory) {
  std::vector<std::string> logs;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!run_of_log(entry.path().string()).empty()) logs.push_back(entry.path().string());
  }
  std::sort(logs.begin(), logs.end());
  return logs;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw InputError(name + ": " + what);
}

std::uint64_t number(const Json& object, const char* key, const std::string& name) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_unsigned() ||
      at->get<std::uint64_t>() >= std::uint64_t{1} << 62) {
    refuse(name, "'" + std::string(key) + "' must be a whole number below 2^62");
  }
  return at->get<std::uint64_t>();
}

const std::string& word(const Json& object, const char* key, const std::string& name) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_string()) {
    refuse(name, "'" + std::string(key) + "' must be a string");
  }
  return at->get_ref<const std::string&>();
}

// The enumerator among the first `count` that is called `text`.
template <typename E, typename Name>
std::optional<E> find_name(std::string_view text, std::size_t count, Name name_of) {
  for (std::size_t i = 0; i < count; ++i) {
    if (name_of(static_cast<E>(i)) == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

runtime::SavedHome parse_home(const Json& object, const std::string& name, std::uint64_t space_bytes) {
  if (!object.is_object()) refuse(name, "an entry of 'homes' must be an object");
  runtime::SavedHome home;
  const auto kind = find_name<StateKind>(word(object, "kind", name), kStateKindCount,
                                         [](StateKind k) { return state_kind_name(k); });
  const auto dtype =
      find_name<DType>(word(object, "dtype", name), static_cast<std::size_t>(DType::kBlock8) + 1,
                       [](DType d) { return dtype_name(d); });
  if (!kind || !dtype) {
    refuse(name, "an entry of 'homes' is of a kind or dtype that this program does not know");
  }
  home.kind = *kind;
  home.dtype = *dtype;
  home.unit =
      static_cast<std::int32_t>(std::min<std::uint64_t>(number(object, "unit", name), 1u << 30));
  home.offset = number(object, "offset", name);
  home.bytes = number(object, "bytes", name);
  home.key = number(object, "key", name);
  home.block_bytes = number(object, "block_bytes", name);
  const std::uint64_t version = number(object, "version", name);
  if (version >> 32 != 0) refuse(name, "'version' must be below 2^32");
  home.version = static_cast<std::uint32_t>(version);
  if (home.bytes == 0 || home.offset > space_bytes || home.bytes > space_bytes - home.offset) {
    refuse(name, "an entry of 'homes' lies outside the files");
  }
  if (home.block_bytes != bytes_of(home.dtype, kLawBlockElems)) {
    refuse(name, "'block_bytes' must be those of " + std::to_string(kLawBlockElems) + " elements");
  }
  const std::string& digest = word(object, "xxh3", name);
  const auto high = from_hex(std::string_view(digest).substr(0, 16));
  const auto low = from_hex(digest.size() == 32 ? std::string_view(digest).substr(16) : "x");
  if (!high || !low) refuse(name, "'xxh3' must be 32 hex digits");
  home.digest = {*low, *high};
  return home;
}

// Even ones where the record has none: it is of a version that knew no others.
std::vector<std::uint32_t> parse_shares(const Json& space, const std::string& name,
                                        std::size_t files) {
  std::vector<std::uint32_t> shares;
  const auto at = space.find("shares");
  if (at == space.end()) return std::vector<std::uint32_t>(files, 1);
  for (const Json& share : *at) {
    const bool whole =
        share.is_number_unsigned() && share.get<std::uint64_t>() <= offload::StripeLayout::kMostStripes;
    shares.push_back(whole ? share.get<std::uint32_t>() : 0);
  }
  if (!at->is_array() || shares.size() != files || !offload::StripeLayout::valid(shares)) {
    refuse(name, "'shares' must be a list of whole numbers above 0, one for each of 'files', " +
                     std::to_string(offload::StripeLayout::kMostStripes) + " in all at most");
  }
  return shares;
}

// Throws InputError where the data of a home is not what was committed.
void verify_home(offload::StripedSpace& space, const RunId& run, const runtime::SavedHome& home) {
  SavedHomeReader reader(space, run, home);
  std::vector<std::byte> window(
      std::max(home.block_bytes, kWindowBytes / home.block_bytes * home.block_bytes));
  for (std::uint64_t at = 0; at < home.bytes; at += window.size()) {
    reader.read(window.data(), std::min<std::uint64_t>(window.size(), home.bytes - at));
  }
  reader.finish();
}

// Where the files are now: of the same names in one of this run's paths (a run directory that was
// moved or copied takes its own along), or where the record says.
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

bool holds_commit(const std::string& log) {
  try {
    return !offload::StateLog::read(*offload::make_storage_engine("posix", {}), log).records.empty();
  } catch (const Error&) {
    return false;
  }
}

std::string state_log_path(const std::string& directory, const std::string& run_id) {
  return directory + "/" + std::string(kLogPrefix) + run_id + std::string(kLogSuffix);
}

std::string run_of_log(const std::string& log) {
  const std::string name = fs::path(log).filename().string();
  if (!name.starts_with(kLogPrefix) || !name.ends_with(kLogSuffix)) return {};
  if (name.size() <= kLogPrefix.size() + kLogSuffix.size()) return {};
  const std::string run =
      name.substr(kLogPrefix.size(), name.size() - kLogPrefix.size() - kLogSuffix.size());
  return parse_run_id(run) ? run : std::string();
}

std::string format_state_record(const CheckpointManifest& manifest, const SavedState& state) {
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(format_manifest(manifest));
  document["space"] = {{"run", state.run.hex()}, {"log", state.log},
                       {"log_id", state.log_id}, {"bytes", state.space_bytes},
                       {"files", state.files},   {"shares", state.shares}};
  document["homes"] = nlohmann::ordered_json::array();
  for (const runtime::SavedHome& home : state.homes) {
    document["homes"].push_back({{"kind", state_kind_name(home.kind)},
                                 {"unit", static_cast<std::uint64_t>(home.unit)},
                                 {"dtype", dtype_name(home.dtype)},
                                 {"offset", home.offset},
                                 {"bytes", home.bytes},
                                 {"key", home.key},
                                 {"block_bytes", home.block_bytes},
                                 {"version", home.version},
                                 {"xxh3", hex(home.digest.high) + hex(home.digest.low)}});
  }
  return document.dump();
}

void parse_state_record(std::string_view text, const std::string& name,
                        CheckpointManifest& manifest, SavedState& state) {
  manifest = parse_manifest(text, name);
  const Json document = Json::parse(text.begin(), text.end());
  const auto space = document.find("space");
  const auto homes = document.find("homes");
  if (space == document.end() || !space->is_object() || homes == document.end() ||
      !homes->is_array()) {
    refuse(name, "'space' must be an object and 'homes' a list");
  }
  state = {};
  const auto run = parse_run_id(word(*space, "run", name));
  if (!run) refuse(name, "'run' must be 32 hex digits");
  state.run = *run;
  state.log = word(*space, "log", name);
  if (space->contains("log_id")) state.log_id = word(*space, "log_id", name);
  state.space_bytes = number(*space, "bytes", name);
  const auto files = space->find("files");
  if (files == space->end() || !files->is_array() || files->empty()) {
    refuse(name, "'files' must be a list of names");
  }
  for (const Json& file : *files) {
    if (!file.is_string()) refuse(name, "'files' must be a list of names");
    const std::string path = file.get<std::string>();
    // No file with another name is opened, or removed, because a record says so.
    const std::string own = "sluice-" + run->hex() + "-" + std::to_string(state.files.size());
    if (name_of(path) != own + offload::StripedSpace::kKeptSuffix) {
      refuse(name, "'files' must name the run's own files, '" + own + offload::StripedSpace::kKeptSuffix +
                       "' and so on");
    }
    state.files.push_back(path);
  }
  state.shares = parse_shares(*space, name, state.files.size());
  for (const Json& home : *homes) state.homes.push_back(parse_home(home, name, state.space_bytes));
}

namespace {

// Throws what keeps the commit from being taken.
void verify(offload::StorageEngine& engine, const DurableFound& found) {
  offload::StripedSpace space(engine, found.state.files, found.state.space_bytes, found.state.shares);
  for (const runtime::SavedHome& home : found.state.homes) verify_home(space, found.state.run, home);
}

// A file that is cut short, or that the disk cannot read; others say nothing about what is there.
bool is_of_the_data(const IoError& error) {
  return error.error_number == 0 || error.error_number == EIO;
}

// Once more where the disk could not read it: an error that passes says nothing about the data.
void verify_again_if_unreadable(offload::StorageEngine& engine, const DurableFound& found) {
  try {
    return verify(engine, found);
  } catch (const IoError& error) {
    if (!is_of_the_data(error)) throw;
    log(LogLevel::kWarning, std::string(error.what()) + "; it is read once more");
  }
  verify(engine, found);
}

// Empty: all are there.
std::string absent_file(const std::vector<std::string>& files) {
  std::error_code error;
  const auto at = std::find_if(files.begin(), files.end(), [&](const std::string& file) {
    return fs::status(file, error).type() == fs::file_type::not_found;
  });
  return at == files.end() ? std::string() : *at;
}

}  // namespace

std::optional<DurableFound> recover_state(offload::StorageEngine& engine, const std::string& log,
                                          const std::vector<std::string>& storage_paths,
                                          std::vector<PassedOver>& passed_over) {
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
  for (const offload::StateLog::Record& record : contents.records) {
    DurableFound found{log, {}, {}};
    PassedOver passed{log, log + ", commit " + std::to_string(record.sequence) + ": "};
    try {
      parse_state_record(record.text, log, found.manifest, found.state);
      check_run(found.state, log);
      passed.step = found.manifest.step;
      find_files(found.state.files, storage_paths);
      verify_again_if_unreadable(engine, found);
      return found;
    } catch (const InputError& error) {
      const std::string absent = absent_file(found.state.files);
      passed.absent = !absent.empty();
      passed.why += passed.absent ? "its data '" + absent + "' is not there" : error.what();
    } catch (const IoError& error) {
      if (!is_of_the_data(error)) throw;
      passed.why += error.what();
    }
    passed_over.push_back(std::move(passed));
  }
  return std::nullopt;
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
      // A pipe or a directory of that name was never a log.
      std::error_code ignored;
      const fs::file_type type = fs::symlink_status(log, ignored).type();
      const bool may_be_a_log = type == fs::file_type::regular || type == fs::file_type::symlink;
      passed_over.push_back({log, log + ": " + error.what(), -1, may_be_a_log});
    }
  }
  return newest;
}

void check_homes(const DurableFound& found, const std::vector<const schedule::Buffer*>& homes) {
  const auto name = [](StateKind kind, std::int32_t unit) {
    return std::string(state_kind_name(kind)) + " of unit " + std::to_string(unit);
  };
  for (const schedule::Buffer* home : homes) {
    const auto same = [&](const runtime::SavedHome& saved) {
      return saved.kind == home->kind && saved.unit == home->unit;
    };
    const auto& all = found.state.homes;
    const auto at = std::find_if(all.begin(), all.end(), same);
    if (at != all.end() && at->dtype == home->dtype && at->bytes == home->bytes) continue;
    throw InputError(found.log + ": is of another model: the " + name(home->kind, home->unit) +
                     (at == all.end() ? " is missing" : " is of another size or dtype"));
  }
  if (found.state.homes.size() != homes.size()) {
    throw InputError(found.log + ": is of another model: it has " +
                     std::to_string(found.state.homes.size()) + " homes of state, this one " +
                     std::to_string(homes.size()));
  }
}

bool owns_data(const std::string& log, const offload::StateLog::Origin& made) {
  std::error_code error;
  // Of a version that kept no id.
  if (made.id.empty()) return fs::equivalent(made.path, log, error);
  const std::string id = offload::file_id(log);
  const auto inode_of = [](const std::string& of) {
    return of.substr(std::min(of.size(), offload::kFileIdDigits / 2));
  };
  if (inode_of(id).empty() || inode_of(id) != inode_of(made.id)) return false;
  if (normal_path(made.path) == normal_path(log)) return true;
  return id == made.id && fs::hard_link_count(log, error) == 1;
}

std::vector<fs::path> data_of_run(const std::string& run_id,
                                  const std::vector<std::string>& directories) {
  const std::string begin = "sluice-" + run_id + "-";
  std::vector<fs::path> data;
  for (const std::string& directory : directories) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(begin) && name.ends_with(offload::StripedSpace::kKeptSuffix)) {
        data.push_back(entry.path());
      }
    }
  }
  return data;
}

namespace {

bool is_without_commit(const std::string& log, const offload::StateLog::Contents& contents,
                       const std::vector<std::string>& storage_paths) {
  return contents.blank() ||
         (contents.empty() && data_of_run(run_of_log(log), storage_paths).empty());
}

// A log that was killed before its header was written is taken for its own.
bool owns_data_of_blank(const std::string& log, const offload::StateLog::Contents& contents) {
  return !contents.origin || owns_data(log, *contents.origin);
}

// Data first: a log that is gone would leave its files to nobody.
void retire(offload::StorageEngine& engine, const std::string& path,
            const std::vector<std::string>& storage_paths) {
  std::vector<std::string> directories = storage_paths;
  std::vector<std::string> others;  // data of another log
  try {
    const offload::StateLog::Contents contents = offload::StateLog::read(engine, path);
    // Whoever resumed was told of it.
    if (contents.records.empty() && !is_without_commit(path, contents, storage_paths)) return;
    if (contents.blank() && !owns_data_of_blank(path, contents)) directories.clear();
    for (const offload::StateLog::Record& record : contents.records) {
      CheckpointManifest manifest;
      SavedState state;
      parse_state_record(record.text, path, manifest, state);
      check_run(state, path);
      const bool owned = owns_data(path, {state.log, state.log_id});
      for (const std::string& file : state.files) {
        if (owned) {
          directories.push_back(fs::path(file).parent_path().string());
        } else {
          others.push_back(file);
        }
      }
    }
  } catch (const Error& error) {
    log(LogLevel::kWarning, std::string(error.what()) + "; that log stays, with its data");
    return;
  }
  std::error_code ignored;  // what cannot be removed is only room
  for (const fs::path& file : data_of_run(run_of_log(path), directories)) {
    const bool kept = std::any_of(others.begin(), others.end(), [&](const std::string& other) {
      return fs::equivalent(other, file, ignored);
    });
    if (!kept) {
      fs::remove(file, ignored);
      continue;
    }
    log(LogLevel::kInfo, "'" + file.string() + "' stays: '" + path +
                             "', which is superseded, was a copy of the log that it belongs to");
  }
  fs::remove(path, ignored);
}

}  // namespace

void retire_other_logs(const std::string& directory, const std::string& own_log,
                       const std::vector<std::string>& storage_paths,
                       const std::vector<std::string>& kept) {
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  for (const std::string& path : logs_in(directory)) {
    if (fs::path(path).filename() == fs::path(own_log).filename()) continue;
    if (std::find(kept.begin(), kept.end(), path) != kept.end()) continue;
    retire(*engine, path, storage_paths);
  }
}

std::vector<std::string> files_without_commit(const std::string& directory,
                                              const std::vector<std::string>& storage_paths) {
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  std::vector<std::string> files;
  for (const std::string& path : logs_in(directory)) {
    bool owned = false;
    try {
      const offload::StateLog::Contents contents = offload::StateLog::read(*engine, path);
      if (!is_without_commit(path, contents, storage_paths)) continue;
      owned = owns_data_of_blank(path, contents);
    } catch (const Error&) {
      continue;  // a resume says it
    }
    if (owned) {
      for (const fs::path& file : data_of_run(run_of_log(path), storage_paths)) {
        files.push_back(file.string());
      }
    }
    files.push_back(path);
  }
  return files;
}

void remove_logs_without_commit(const std::string& directory, const std::string& own_log,
                                const std::vector<std::string>& storage_paths) {
  const std::string own_id = run_of_log(own_log);
  for (const std::string& file : files_without_commit(directory, storage_paths)) {
    if (!own_id.empty() && file.find(own_id) != std::string::npos) continue;
    std::error_code ignored;  // what cannot be removed is only room
    fs::remove(file, ignored);
  }
}

UncommittedFiles::~UncommittedFiles() {
  if (kept_) return;
  std::error_code ignored;  // what cannot be removed is only room
  for (const fs::path& file : data_of_run(run_id_, storage_paths_)) fs::remove(file, ignored);
  fs::remove(log_path(), ignored);
}

}  // namespace sluice::checkpoint
