// A storage engine that passes every call on. A test derives its engine from this one, to change
// one thing.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "offload/storage_engine.hpp"

namespace sluice::testing {

class PassingEngine : public offload::StorageEngine {
 public:
  explicit PassingEngine(std::unique_ptr<offload::StorageEngine> inner)
      : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  offload::StorageFileId open(const std::string& path, offload::StorageFileMode mode,
                              std::uint64_t bytes) override {
    return inner_->open(path, mode, bytes);
  }
  std::uint64_t file_bytes(offload::StorageFileId file) const override {
    return inner_->file_bytes(file);
  }
  void close(offload::StorageFileId file) override { inner_->close(file); }
  void register_memory(void* data, std::uint64_t bytes) override {
    inner_->register_memory(data, bytes);
  }
  void submit(const offload::StorageRequest& request, Callback done) override {
    inner_->submit(request, std::move(done));
  }
  void drain(Deadline deadline) override { inner_->drain(deadline); }
  void flush(offload::StorageFileId file) override { inner_->flush(file); }
  offload::StorageCounters counters() const override { return inner_->counters(); }
  void filter_results(ResultFilter filter) override { inner_->filter_results(std::move(filter)); }

 private:
  std::unique_ptr<offload::StorageEngine> inner_;
};

}  // namespace sluice::testing
