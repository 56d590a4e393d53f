// The manifest of a checkpoint: its run and step, the needs of a resume, and the files' checksums.
//
// A checkpoint exists exactly when its manifest does: the files are written first, each is on the
// disk, and the manifest comes last. It is JSON with a digest of itself: the member "digest" is the
// XXH3-128 of all other members in canonical form (keys sorted, no spaces). So a damaged manifest
// is refused as a damaged file is. It is read as untrusted: sizes are bounded, duplicate keys are
// refused, file names are bare. Unknown members are passed over; `version` says when that is not
// safe. Errors: InputError, one sentence with the file and the member.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "engine/runtime/loss_scaler.hpp"

namespace sluice::checkpoint {

struct ManifestFile {
  std::string name;  // bare: no directory
  std::uint64_t bytes = 0;
  std::string xxh3;  // XXH3-128 of the file, 32 hex digits

  bool operator==(const ManifestFile&) const = default;
};

// Another version of Sluice wrote the manifest, which may be whole.
class UnknownVersion : public InputError {
 public:
  using InputError::InputError;
};

struct CheckpointManifest {
  static constexpr std::int64_t kVersion = 3;

  std::int64_t step = 0;         // steps finished; the data position follows from it
  std::string run_id;            // of the run that wrote it, 32 hex digits; empty: not recorded
  std::string data_fingerprint;  // Dataset::fingerprint(), 32 hex digits
  // The device, library and instruction set on which the bits of a GEMM depend, and the team of
  // threads that made them.
  std::string arithmetic;
  std::int64_t threads = 0;
  std::string weights_hash;  // 32 hex digits; empty where there are no files
  std::optional<runtime::LossScaleState> loss_scale;  // fp16 training's
  std::map<std::string, std::string> settings;        // result_settings()
  std::vector<ManifestFile> files;

  bool operator==(const CheckpointManifest&) const = default;
};

// The members alone, without the digest: as they stand in a record of a state log, which has a
// digest of its own (durable_record.hpp).
std::string format_manifest(const CheckpointManifest& manifest);
// `name` stands for the file in messages. A digest is passed over.
CheckpointManifest parse_manifest(std::string_view json, const std::string& name);

// The text of a manifest file, and its parser: the digest must be right, `files` and `weights_hash`
// must be there.
std::string format_manifest_file(const CheckpointManifest& manifest);
CheckpointManifest parse_manifest_file(std::string_view json, const std::string& name);

// A symbolic link in the place of the file is refused.
CheckpointManifest load_manifest(const std::string& path);
// Writes a temporary file next to it, flushes it and renames it: the old manifest or the new one is
// there, never a part.
void save_manifest(const CheckpointManifest& manifest, const std::string& path);

// Throws InputError naming the first file of `directory` that is missing, of another size, or
// corrupt.
void verify_files(const CheckpointManifest& manifest, const std::string& directory);

}  // namespace sluice::checkpoint
