// Checkpoints of a run: DIR/step-00000020/{state.safetensors, manifest.json}.
//
// Written to a temporary directory and renamed when whole and on the disk: a checkpoint either
// verifies or does not count. Resuming takes the newest that verifies.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.hpp"
#include "engine/checkpoint/model_state.hpp"
#include "engine/config/config.hpp"
#include "engine/model/model.hpp"

namespace sluice::checkpoint {

struct CheckpointFound {
  std::string directory;
  CheckpointManifest manifest;
};

// Finds the newest checkpoint under `directory` that verifies: its manifest, its files, and a
// `step` equal to that of the directory's name. The log names newer ones that do not verify. Throws
// InputError if there is none, with the reason of the newest that failed.
CheckpointFound find_checkpoint(const std::string& directory);
// Opens a checkpoint that another rank has found and verified: only its manifest is read.
CheckpointFound open_checkpoint(const std::string& directory);

// Throws InputError if the checkpoint belongs to another model (naming the first tensor that
// differs), another configuration or other data, if it has more steps than train.steps, or if its
// weights do not have the hash in its manifest.
void check_checkpoint(const CheckpointFound& found, const config::Config& config,
                      const model::Model& model, const std::string& data_fingerprint);

// The part of the check that needs no tensors. `where` names the checkpoint in messages.
void check_manifest(const CheckpointManifest& manifest, const std::string& where,
                    const config::Config& config, const std::string& data_fingerprint);

// Throws InputError if the checkpoint was computed by other arithmetic (Kernels::arithmetic()).
void check_arithmetic(const CheckpointManifest& manifest, const std::string& where,
                      const std::string& arithmetic);

// Whether the name is that of a checkpoint that was being written.
bool is_unfinished_checkpoint(const std::filesystem::path& path);

// Keeps the newest two. manifest: all but `files` and `weights_hash`. All ranks call it, and the
// first writes.
void save_checkpoint(const std::string& directory, CheckpointManifest manifest, ModelState& state);
void load_checkpoint(const CheckpointFound& found, ModelState& state);

}  // namespace sluice::checkpoint
