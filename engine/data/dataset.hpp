// Batches of a token stream: training windows in seeded order, and an evaluation split.
//
// The stream is cut at token_count * (1 - eval_fraction): the first part trains, the last
// evaluates. Window w of a part is its tokens [w*seq, w*seq + seq]: seq inputs, and the same tokens
// shifted by one as targets. Every token but the first is thus a target once; the rest at a part's
// end is unused. Sample i of micro-batch m of step s has the index (s*accumulate + m)*micro_batch +
// i in the run. Its window is a pure function of (seed, index), so a resumed run needs only the
// step number. Thread rule: several threads may make const calls at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/data_format.hpp"
#include "engine/data/sample_order.hpp"
#include "engine/data/token_stream.hpp"

namespace sluice::data {

struct DatasetOptions {
  std::vector<std::string> paths;
  config::DataFormat format = config::DataFormat::kBytes;
  std::int64_t vocab = 256;
  double eval_fraction = 0.0;    // in [0, 1)
  std::int64_t seq = 0;          // tokens per sample
  std::int64_t micro_batch = 0;  // samples per micro-batch
  std::int64_t accumulate = 1;   // micro-batches per step
  std::uint64_t seed = 0;
};

class Dataset {
 public:
  // Throws InputError as TokenStream does, and if a part is too short for one window.
  explicit Dataset(const DatasetOptions& options);

  // Divides steps into micro-batches anew. Samples and their order stay, as long as the product
  // does.
  void divide(std::int64_t micro_batch, std::int64_t accumulate);

  // Fills tokens and targets: [micro_batch, seq] int32, row-major, owned by the caller. step counts
  // from 0; microbatch is in [0, accumulate). Throws IoError if a file can no longer be read.
  void fill(std::int64_t step, std::int64_t microbatch, std::int32_t* tokens,
            std::int32_t* targets) const;

  // A sample of training: its number in the run, its window, and the window's first token.
  struct Sample {
    std::uint64_t index = 0;
    std::uint64_t epoch = 0;
    std::uint64_t window = 0;
    std::uint64_t first_token = 0;  // in the stream; the sample uses train.seq + 1 tokens
  };
  // Sample `i` in [0, micro_batch) of a micro-batch; the one that fill() reads there.
  Sample sample(std::int64_t step, std::int64_t microbatch, std::int64_t i) const;
  const TokenStream& stream() const { return stream_; }

  // The number of batches of micro_batch windows in the evaluation part; 0 if eval_fraction is 0. A
  // part with fewer windows than one batch has one batch that repeats them.
  std::int64_t eval_batches() const;
  // Fills batch `index` in [0, eval_batches()), with windows in stream order.
  void fill_eval(std::int64_t index, std::int32_t* tokens, std::int32_t* targets) const;

  std::uint64_t token_count() const { return stream_.token_count(); }
  std::size_t file_count() const { return stream_.file_count(); }
  std::uint64_t train_windows() const { return train_windows_; }
  std::uint64_t eval_windows() const { return eval_windows_; }
  // The files' digest; 32 hex digits.
  std::string fingerprint() const { return stream_.fingerprint(); }

 private:
  void read_window(std::uint64_t first_token, std::int32_t* tokens, std::int32_t* targets) const;

  TokenStream stream_;
  std::int64_t seq_;
  std::int64_t micro_batch_;
  std::int64_t accumulate_;
  std::uint64_t eval_begin_ = 0;  // first token of the evaluation part
  std::uint64_t train_windows_ = 0;
  std::uint64_t eval_windows_ = 0;
  std::optional<SampleOrder> order_;  // set by the constructor, once the windows are counted
};

}  // namespace sluice::data
