// Any bytes as an llm.c token file, and as text: batches of tokens below the vocabulary, or an
// InputError. The first byte of the input chooses the vocabulary and the format, the rest is the
// file.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "engine/data/dataset.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const sluice::MemoryFile file(data + 1, size - 1);
  sluice::data::DatasetOptions options;
  options.paths = {file.path()};
  options.format =
      (data[0] & 1) != 0 ? sluice::config::DataFormat::kLlmc : sluice::config::DataFormat::kBytes;
  options.vocab = (data[0] & 2) != 0 ? 200 : 1 << 20;
  options.eval_fraction = (data[0] & 4) != 0 ? 0.3 : 0.0;
  options.seq = 3;
  options.micro_batch = 2;
  try {
    const sluice::data::Dataset dataset(options);
    std::vector<std::int32_t> tokens(6), targets(6);
    const auto check = [&] {
      for (const auto& row : {tokens, targets}) {
        for (const std::int32_t token : row) {
          if (token < 0 || token >= options.vocab) __builtin_trap();
        }
      }
    };
    for (std::int64_t step = 0; step < 4; ++step) {
      dataset.fill(step, 0, tokens.data(), targets.data());
      check();
    }
    if (dataset.eval_batches() > 0) {
      dataset.fill_eval(dataset.eval_batches() - 1, tokens.data(), targets.data());
      check();
    }
  } catch (const sluice::InputError&) {
  }
  return 0;
}
