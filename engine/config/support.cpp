// Which values of the keys this version cannot run yet: one table for the refusal and for the help.
#include <vector>

#include "base/error.hpp"
#include "engine/config/config.hpp"
#include "engine/config/schema.hpp"

namespace sluice::config {
namespace {

struct Unavailable {
  const char* path;
  const char* values;  // after the path, in a sentence
  bool (*asked)(const Config&);
  const char* instead = "";  // after the sentence
};

const std::vector<Unavailable>& unavailable() {
  using C = const Config&;
  static const std::vector<Unavailable> table{
      {"model.from", "(starting from Hugging Face weights)",
       [](C c) { return !c.model.from.empty(); }},
      {"data.format", "= \"megatron\"", [](C c) { return c.data.format == DataFormat::kMegatron; }},
      {"parallel.tensor_mode", "= \"2d\", \"2.5d\" or \"3d\"",
       [](C c) { return c.parallel.tensor_mode != Config::TensorMode::k1D; },
       "; parallel.tensor = q and parallel.data = q with parallel.zero = 3 and parallel.sequence "
       "leave as little on each of q x q ranks"},
      {"train.reduction", "= \"sequential\"",
       [](C c) { return c.train.reduction == Config::Reduction::kSequential; }},
  };
  return table;
}

}  // namespace

void check_supported(const Config& config) {
  for (const Unavailable& item : unavailable()) {
    if (!item.asked(config)) continue;
    throw InputError(std::string(item.path) + " " + item.values +
                     " is not available in this version" + item.instead);
  }
}

std::string unavailable_values(std::string_view path) {
  for (const Unavailable& item : unavailable()) {
    if (item.path == path) return item.values;
  }
  return {};
}

}  // namespace sluice::config
