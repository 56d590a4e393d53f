// The data of a run, as its configuration describes them.
#pragma once

#include "engine/config/config.hpp"
#include "engine/data/dataset.hpp"

namespace sluice::data {

DatasetOptions dataset_options(const config::Config& config);

}  // namespace sluice::data
