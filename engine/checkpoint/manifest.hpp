// The manifest of a checkpoint: what it is of, what it needs to be resumed, and its files'
// checksums.
//
// A checkpoint exists exactly when its manifest does: files first, each on the disk, manifest last.
// JSON, read as untrusted: sizes bounded, duplicate keys refused, file names bare. Members that are
// not known are passed over; `version` says when that is not safe. Errors: InputError, one sentence
// with the file and the member.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/loss_scaler.hpp"

namespace sluice::checkpoint {

struct ManifestFile {
  std::string name;  // bare: no directory
  std::uint64_t bytes = 0;
  std::string xxh3;  // XXH3-128 of the file, 32 hex digits

  bool operator==(const ManifestFile&) const = default;
};

struct CheckpointManifest {
  static constexpr std::int64_t kVersion = 2;

  std::int64_t step = 0;         // steps finished; the data position follows from it
  std::string run_id;            // of the run that wrote it, 32 hex digits; empty: not recorded
  std::string data_fingerprint;  // Dataset::fingerprint(), 32 hex digits
  // What the bits of a GEMM depend on (device, library, instruction set), and the team that made
  // them.
  std::string arithmetic;
  std::int64_t threads = 0;
  std::string weights_hash;                     // 32 hex digits; empty where there are no files
  std::optional<runtime::LossScaleState> loss_scale;     // fp16 training's
  std::map<std::string, std::string> settings;  // result_settings()
  std::vector<ManifestFile> files;

  bool operator==(const CheckpointManifest&) const = default;
};

std::string format_manifest(const CheckpointManifest& manifest);
// `name` stands for the file in messages.
CheckpointManifest parse_manifest(std::string_view json, const std::string& name);

CheckpointManifest load_manifest(const std::string& path);
// By a temporary file beside it, fsync and rename: the old manifest or the new one, never a part.
void save_manifest(const CheckpointManifest& manifest, const std::string& path);

// Throws InputError naming the first file of `directory` that is missing, of another size, or
// corrupt.
void verify_files(const CheckpointManifest& manifest, const std::string& directory);

}  // namespace sluice::checkpoint
