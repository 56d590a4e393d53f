#include "engine/checkpoint/manifest.hpp"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "base/digest.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/open_beneath.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"

namespace sluice::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "sluice checkpoint";
constexpr std::size_t kMaxManifestBytes = 16 * kMiB;
constexpr std::size_t kMaxTextBytes = 4096;
// A setting's value: the file that it was read from has at most 1 MiB, and quoting makes no byte
// longer than six.
constexpr std::size_t kMaxSettingBytes = 8 * kMiB;
constexpr int kMaxDepth = 4;  // manifest > files > one file > its members, and one to spare

// Reads members of one JSON object, each with its type and bounds checked.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw InputError(where_ + " must be an object");
  }

  const Json& member(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail(name, "is missing");
    return *found;
  }
  std::uint64_t count(const char* name) const {
    const Json& value = member(name);
    if (!value.is_number_unsigned()) fail(name, "must be a whole number, not negative");
    return value.get<std::uint64_t>();
  }
  std::int64_t small_count(const char* name) const {
    const std::uint64_t value = count(name);
    if (value >= std::uint64_t{1} << 62) fail(name, "is too large");
    return static_cast<std::int64_t>(value);
  }
  std::string text(const char* name, std::size_t most_bytes = kMaxTextBytes) const {
    const Json& value = member(name);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > most_bytes) {
      fail(name, ("must be a string of at most " + std::to_string(most_bytes) + " bytes").c_str());
    }
    return value.get<std::string>();
  }
  std::string digest(const char* name) const {
    std::string value = text(name);
    if (!is_digest_hex(value)) fail(name, "must be 32 hex digits");
    return value;
  }
  [[noreturn]] void fail(const char* name, const char* words) const {
    throw InputError(where_ + ": '" + name + "' " + words);
  }

 private:
  const Json& object_;
  std::string where_;
};

bool is_bare_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

// Duplicate keys and depth are checked while the text is read; nlohmann alone keeps the last of
// two.
Json parse_strictly(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw InputError(name + " is nested too deeply for a manifest");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      throw InputError(name + ": a key stands twice in one object");
    }
    return true;
  };
  try {
    return parse_json(text, check);
  } catch (const Json::parse_error& error) {
    throw InputError(name + ": not valid JSON at byte " + std::to_string(error.byte));
  } catch (const Json::out_of_range&) {
    throw InputError(name + ": a number out of range");
  }
}

// Version 2 was written by Sluice 0.1.0 before manifests had a digest.
void check_version(const ObjectReader& reader, const std::string& where) {
  const std::uint64_t version = reader.count("version");
  if (version == CheckpointManifest::kVersion) return;
  const std::string words =
      "is " + std::to_string(version) +
      (version < CheckpointManifest::kVersion ? ", which an earlier Sluice wrote, without a digest"
                                              : ", which a later Sluice wrote") +
      "; this program reads version " + std::to_string(CheckpointManifest::kVersion) +
      ": resume with the program that wrote it, or start anew";
  throw UnknownVersion(where + ": 'version' " + words);
}

// XXH3-128 of the canonical form, without the digest itself. nlohmann::json keeps keys sorted.
std::string digest_of_members(Json document) {
  document.erase("digest");
  Digest digest;
  const std::string text = json_text(document);
  digest.update(text.data(), text.size());
  return digest.finish().hex();
}

runtime::LossScaleState parse_loss_scale(const Json& object, const std::string& name,
                                         std::int64_t steps) {
  const ObjectReader reader(object, name + ": 'loss_scale'");
  runtime::LossScaleState state;
  state.scale = reader.small_count("scale");
  if (state.scale > kMaxLossScale ||
      !std::has_single_bit(static_cast<std::uint64_t>(state.scale))) {
    reader.fail("scale", "must be a power of two, at most 2^32");
  }
  state.good_steps = reader.small_count("good_steps");
  state.overflows = reader.small_count("overflows");
  state.skipped_steps = reader.small_count("skipped_steps");
  if (state.good_steps > steps) reader.fail("good_steps", "is more than the steps of the run");
  if (state.skipped_steps > steps) {
    reader.fail("skipped_steps", "is more than the steps of the run");
  }
  if (state.overflows > state.skipped_steps) {
    reader.fail("overflows", "is more than 'skipped_steps'");
  }
  return state;
}

}  // namespace

std::string format_manifest(const CheckpointManifest& manifest) {
  nlohmann::ordered_json document;
  document["format"] = kFormat;
  document["version"] = CheckpointManifest::kVersion;
  document["step"] = manifest.step;
  if (!manifest.run_id.empty()) document["run_id"] = manifest.run_id;
  document["data_fingerprint"] = manifest.data_fingerprint;
  document["arithmetic"] = manifest.arithmetic;
  document["threads"] = manifest.threads;
  if (!manifest.weights_hash.empty()) document["weights_hash"] = manifest.weights_hash;
  if (manifest.loss_scale) {
    document["loss_scale"] = {{"scale", manifest.loss_scale->scale},
                              {"good_steps", manifest.loss_scale->good_steps},
                              {"overflows", manifest.loss_scale->overflows},
                              {"skipped_steps", manifest.loss_scale->skipped_steps}};
  }
  document["settings"] = manifest.settings;
  document["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    document["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  }
  return json_text(document, 2) + "\n";
}

namespace {

Json parse_document(std::string_view json, const std::string& name) {
  if (json.size() > kMaxManifestBytes) {
    throw InputError(name + " is too large for a manifest: at most " +
                     format_bytes_exact(kMaxManifestBytes));
  }
  return parse_strictly(json, name);
}

CheckpointManifest manifest_of(const Json& document, const std::string& name) {
  const ObjectReader reader(document, name);
  if (reader.text("format") != kFormat) {
    reader.fail("format", "must be \"sluice checkpoint\"");
  }
  check_version(reader, name);
  CheckpointManifest manifest;
  manifest.step = reader.small_count("step");
  if (document.contains("run_id")) manifest.run_id = reader.digest("run_id");
  manifest.data_fingerprint = reader.digest("data_fingerprint");
  manifest.arithmetic = reader.text("arithmetic");
  manifest.threads = reader.small_count("threads");
  if (document.contains("loss_scale")) {
    manifest.loss_scale = parse_loss_scale(reader.member("loss_scale"), name, manifest.step);
  }
  const Json& settings = reader.member("settings");
  const ObjectReader settings_reader(settings, name + ": 'settings'");
  for (const auto& [key, value] : settings.items()) {
    manifest.settings[key] = settings_reader.text(key.c_str(), kMaxSettingBytes);
  }
  const Json& files = reader.member("files");
  if (!files.is_array()) reader.fail("files", "must be a list");
  std::set<std::string> names;
  for (const Json& entry : files) {
    const ObjectReader file(entry, name + ": an entry of 'files'");
    manifest.files.push_back({file.text("name"),
                              static_cast<std::uint64_t>(file.small_count("bytes")),
                              file.digest("xxh3")});
    if (!is_bare_name(manifest.files.back().name)) file.fail("name", "must be a bare file name");
    if (!names.insert(manifest.files.back().name).second) file.fail("name", "stands twice");
  }
  if (!manifest.files.empty() || document.contains("weights_hash")) {
    manifest.weights_hash = reader.digest("weights_hash");
  }
  return manifest;
}

}  // namespace

CheckpointManifest parse_manifest(std::string_view json, const std::string& name) {
  return manifest_of(parse_document(json, name), name);
}

std::string format_manifest_file(const CheckpointManifest& manifest) {
  auto document = parse_ordered_json(format_manifest(manifest));
  document["digest"] = digest_of_members(Json(document));
  return json_text(document, 2) + "\n";
}

CheckpointManifest parse_manifest_file(std::string_view json, const std::string& name) {
  const Json document = parse_document(json, name);
  const ObjectReader reader(document, name);
  // A manifest of another version is named as such before its digest is missed.
  if (reader.text("format") == kFormat) check_version(reader, name);
  if (reader.digest("digest") != digest_of_members(document)) {
    reader.fail("digest", "is not that of the manifest: the file was damaged or edited");
  }
  CheckpointManifest manifest = manifest_of(document, name);
  if (manifest.files.empty()) reader.fail("files", "must name the checkpoint's files");
  return manifest;
}

CheckpointManifest load_manifest(const std::string& path) {
  std::string text;
  try {
    const PosixFile file = PosixFile::open_read_beneath(directory_of(path), name_of(path));
    // One byte more than is valid, so that the parser sees too much.
    text.resize(std::min<std::uint64_t>(file.size_bytes(), kMaxManifestBytes + 1));
    text.resize(file.read_some(0, std::as_writable_bytes(std::span(text))));
  } catch (const IoError& error) {
    throw InputError(path + " cannot be read as a checkpoint's manifest: " + error.what());
  }
  return parse_manifest_file(text, path);
}

void save_manifest(const CheckpointManifest& manifest, const std::string& path) {
  const std::string temporary = path + ".tmp";
  const std::string text = format_manifest_file(manifest);
  PosixFile file = PosixFile::create(temporary);
  file.write_all(0, std::as_bytes(std::span(text)));
  file.sync();
  rename_durably(temporary, path);
}

void verify_files(const CheckpointManifest& manifest, const std::string& directory) {
  for (const ManifestFile& file : manifest.files) {
    const std::string path = directory + "/" + file.name;
    std::optional<PosixFile> opened;
    std::uint64_t bytes = 0;
    try {
      opened = PosixFile::open_read_beneath(directory, file.name);
      bytes = opened->size_bytes();
    } catch (const IoError& error) {
      throw InputError(path + " of the checkpoint cannot be read: " + error.what());
    }
    if (bytes != file.bytes) {
      throw InputError(path + " has " + std::to_string(bytes) + " bytes; its manifest says " +
                       std::to_string(file.bytes));
    }
    if (hash_file(*opened) != file.xxh3) {
      throw InputError(path + " is corrupt: its checksum is not the manifest's");
    }
  }
}

}  // namespace sluice::checkpoint
