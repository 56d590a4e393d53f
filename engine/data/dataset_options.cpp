#include "engine/data/dataset_options.hpp"

namespace sluice::data {

DatasetOptions dataset_options(const config::Config& config) {
  DatasetOptions options;
  options.paths = config.data.paths;
  options.format = config.data.format;
  options.vocab = config.model.vocab;
  options.eval_fraction = config.data.eval_fraction;
  options.seq = config.train.seq;
  options.micro_batch = config.train.micro_batch;
  options.accumulate = config.train.accumulate;
  if (options.micro_batch == config::Config::kAutoCount) {  // until the planner divides the step
    options.micro_batch = config.train.batch;
    options.accumulate = 1;
  }
  options.seed = config.train.seed;
  return options;
}

}  // namespace sluice::data
