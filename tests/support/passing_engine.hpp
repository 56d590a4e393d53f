// A storage engine that passes every call on: what a test's engine is made of that does one thing
// otherwise.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "offload/storage_engine.hpp"

namespace sluice::testing {

class PassingEngine : public StorageEngine {
 public:
  explicit PassingEngine(std::unique_ptr<StorageEngine> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  StorageFileId open(const std::string& path, StorageFileMode mode, std::uint64_t bytes) override {
    return inner_->open(path, mode, bytes);
  }
  std::uint64_t file_bytes(StorageFileId file) const override { return inner_->file_bytes(file); }
  void close(StorageFileId file) override { inner_->close(file); }
  void register_memory(void* data, std::uint64_t bytes) override {
    inner_->register_memory(data, bytes);
  }
  void submit(const StorageRequest& request, Callback done) override {
    inner_->submit(request, std::move(done));
  }
  void drain(Deadline deadline) override { inner_->drain(deadline); }
  void flush(StorageFileId file) override { inner_->flush(file); }
  StorageCounters counters() const override { return inner_->counters(); }
  void filter_results(ResultFilter filter) override { inner_->filter_results(std::move(filter)); }

 private:
  std::unique_ptr<StorageEngine> inner_;
};

}  // namespace sluice::testing
