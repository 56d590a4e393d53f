#include "engine/data/dataset.hpp"

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace sluice::data {

namespace {

// Neighbouring windows share a token, hence (tokens - 1) / seq.
std::uint64_t windows_in(std::uint64_t tokens, std::int64_t seq) {
  return tokens == 0 ? 0 : (tokens - 1) / static_cast<std::uint64_t>(seq);
}

}  // namespace

Dataset::Dataset(const DatasetOptions& options)
    : stream_(options.paths, options.format, options.vocab),
      seq_(options.seq),
      micro_batch_(options.micro_batch),
      accumulate_(options.accumulate) {
  SLUICE_CHECK(seq_ > 0 && micro_batch_ > 0 && accumulate_ > 0);
  SLUICE_CHECK(options.eval_fraction >= 0.0 && options.eval_fraction < 1.0);
  const std::uint64_t tokens = stream_.token_count();
  const auto eval_tokens =
      static_cast<std::uint64_t>(static_cast<double>(tokens) * options.eval_fraction);
  eval_begin_ = tokens - std::min(eval_tokens, tokens);
  train_windows_ = windows_in(eval_begin_, seq_);
  eval_windows_ = windows_in(tokens - eval_begin_, seq_);
  const std::string needed =
      "; train.seq = " + std::to_string(seq_) + " needs at least " + std::to_string(seq_ + 1);
  if (train_windows_ == 0) {
    throw InputError("data.paths: the training part has " + std::to_string(eval_begin_) +
                     " tokens" + needed);
  }
  if (options.eval_fraction > 0.0 && eval_windows_ == 0) {
    throw InputError("data.eval_fraction: the evaluation part has " +
                     std::to_string(tokens - eval_begin_) + " tokens" + needed);
  }
  order_.emplace(options.seed, train_windows_);
}

void Dataset::divide(std::int64_t micro_batch, std::int64_t accumulate) {
  SLUICE_CHECK(micro_batch > 0 && accumulate > 0);
  micro_batch_ = micro_batch;
  accumulate_ = accumulate;
}

Dataset::Sample Dataset::sample(std::int64_t step, std::int64_t microbatch, std::int64_t i) const {
  SLUICE_CHECK(step >= 0 && microbatch >= 0 && microbatch < accumulate_);
  SLUICE_CHECK(i >= 0 && i < micro_batch_);
  Sample sample;
  sample.index = static_cast<std::uint64_t>((step * accumulate_ + microbatch) * micro_batch_ + i);
  sample.epoch = sample.index / train_windows_;
  sample.window = order_->window_of(sample.index);
  sample.first_token = sample.window * static_cast<std::uint64_t>(seq_);
  return sample;
}

void Dataset::fill(std::int64_t step, std::int64_t microbatch, std::int32_t* tokens,
                   std::int32_t* targets) const {
  for (std::int64_t i = 0; i < micro_batch_; ++i) {
    read_window(sample(step, microbatch, i).first_token, tokens + i * seq_, targets + i * seq_);
  }
}

std::int64_t Dataset::eval_batches() const {
  if (eval_windows_ == 0) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(eval_windows_) / micro_batch_);
}

void Dataset::fill_eval(std::int64_t index, std::int32_t* tokens, std::int32_t* targets) const {
  SLUICE_CHECK(index >= 0 && index < eval_batches());
  for (std::int64_t i = 0; i < micro_batch_; ++i) {
    const std::uint64_t window =
        static_cast<std::uint64_t>(index * micro_batch_ + i) % eval_windows_;
    read_window(eval_begin_ + window * static_cast<std::uint64_t>(seq_), tokens + i * seq_,
                targets + i * seq_);
  }
}

void Dataset::read_window(std::uint64_t first_token, std::int32_t* tokens,
                          std::int32_t* targets) const {
  std::vector<std::int32_t> window(static_cast<std::size_t>(seq_) + 1);
  stream_.read(first_token, window);
  std::copy(window.begin(), window.end() - 1, tokens);
  std::copy(window.begin() + 1, window.end(), targets);
}

}  // namespace sluice::data
