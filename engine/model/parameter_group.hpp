// A group of a model's tensors with a different learning rate or decay than the run's.
#pragma once

#include <optional>
#include <string>

namespace sluice::model {

// Settings for the tensors with names that match `match`, a shell pattern ("*.bias",
// "blocks.?.mlp.*"; fnmatch(3)). The first matching group counts; a tensor without one has the
// run's values.
struct ParameterGroup {
  std::string match;
  double lr_scale = 1.0;
  std::optional<double> weight_decay;  // also for tensors that do not decay by default
  bool operator==(const ParameterGroup&) const = default;
};

}  // namespace sluice::model
