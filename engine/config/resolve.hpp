// The last steps of loading: required keys, derived defaults, agreement between values.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "engine/config/config.hpp"

namespace sluice::config {

// The keys that were given, and the place of each ("run.toml:12", "--set train.seq=64"). Each entry
// of a table of named places has its own: "memory.place.saved.qkv".
class ConfigOrigins {
 public:
  explicit ConfigOrigins(std::string file) : file_(std::move(file)) {}
  const std::string& file() const { return file_; }
  void set(const std::string& path, const std::string& origin) {
    origins_[path] = {origin, overrides_};
  }
  // The keys of each override are later than those before it, and than all of the file.
  void begin_override() { ++overrides_; }
  bool given(std::string_view path) const { return origins_.find(path) != origins_.end(); }
  // The place where the key was given; the file for a key that was not.
  const std::string& of(std::string_view path) const {
    const auto found = origins_.find(path);
    return found == origins_.end() ? file_ : found->second.text;
  }
  // Whether a key was given later than another one. Those of a file are given at once, and before
  // them those that were not given at all.
  bool is_later(std::string_view path, std::string_view than) const {
    const auto order = [this](std::string_view key) {
      const auto found = origins_.find(key);
      return found == origins_.end() ? 0 : found->second.override_number;
    };
    return order(path) > order(than);
  }

 private:
  struct Origin {
    std::string text;
    int override_number = 0;  // from 1; 0: of the file
  };
  std::string file_;
  int overrides_ = 0;
  std::map<std::string, Origin, std::less<>> origins_;
};

// Fills in derived defaults and throws InputError where a required key is missing or values
// disagree.
void resolve_config(Config& config, const ConfigOrigins& origins);
// Throws InputError for a given key that other values leave without a meaning, such as
// optimizer.momentum with adamw, unless a later override set those or it has its default.
void check_resting_keys(const Config& config, const ConfigOrigins& origins);

// The configuration with all derived defaults derived once more from its other keys.
// train.accumulate stays: it follows train.batch only where that is given.
Config derived_anew(const Config& config);

}  // namespace sluice::config
