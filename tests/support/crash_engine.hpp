// A storage engine in memory that keeps all writes in their order, and the disks that a crash at
// any moment may leave. A write that no flush had covered by then is there, missing, or there in
// part (sectors of 512 bytes), whatever the others are.
//
// Requests end on a thread of the engine, in a seeded order.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::testing {

using Bytes = std::vector<std::byte>;
using DiskImage = std::map<std::string, Bytes>;  // by path

// The operations of one engine on its files.
class CrashDisk {
 public:
  struct Op {
    bool flush = false;
    std::string path;
    std::uint64_t offset = 0;  // of a write, as is data
    Bytes data;
    bool ended = false;              // the write was reported to have ended
    std::size_t covered = SIZE_MAX;  // the first flush after that, as a place in ops
  };

  // guarded by mutex while an engine runs
  std::mutex mutex;
  DiskImage files;  // now
  std::vector<Op> ops;

  // The paths of files with names that end in `suffix`.
  std::vector<std::string> paths_ending(const std::string& suffix) const {
    std::vector<std::string> paths;
    for (const auto& [path, bytes] : files) {
      if (path.ends_with(suffix)) paths.push_back(path);
    }
    return paths;
  }

  // The disk that a crash after the first `until` operations leaves, a function of the seed. lies:
  // flushes cover no file with a name that ends in `lies` (the disk reports them all the same).
  DiskImage after_crash(std::size_t until, std::uint64_t seed,
                        const std::string& lies = "-") const {
    const CounterRng random(seed, stream_of("test/crash"));
    std::uint64_t draw = 0;
    DiskImage image;
    for (const auto& [path, bytes] : files) image[path] = Bytes(bytes.size());
    // All writes of one crash are likely to fare alike.
    const std::uint64_t kept_of_8 = random.below(draw++, 9);
    for (std::size_t i = 0; i < until; ++i) {
      const Op& op = ops[i];
      if (op.flush) continue;
      Bytes& file = image[op.path];
      const bool covered = op.covered < until && !op.path.ends_with(lies);
      if (covered || random.below(draw++, 8) < kept_of_8) {
        std::memcpy(file.data() + op.offset, op.data.data(), op.data.size());
      } else if (random.below(draw++, 2) == 0) {
        for (std::size_t at = 0; at < op.data.size(); at += 512) {
          if (random.below(draw++, 2) == 0) continue;
          const std::size_t bytes = std::min<std::size_t>(512, op.data.size() - at);
          std::memcpy(file.data() + op.offset + at, op.data.data() + at, bytes);
        }
      }
    }
    return image;
  }
};

class CrashEngine final : public offload::StorageEngine {
 public:
  explicit CrashEngine(std::shared_ptr<CrashDisk> disk, std::uint64_t seed = 1)
      : disk_(std::move(disk)), random_(seed, stream_of("test/crash_engine")) {
    worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }
  ~CrashEngine() override {
    worker_.request_stop();
    changed_.notify_all();
  }

  std::string name() const override { return "memory"; }

  offload::StorageFileId open(const std::string& path, offload::StorageFileMode mode,
                              std::uint64_t bytes) override {
    const std::lock_guard lock(disk_->mutex);
    const bool there = disk_->files.contains(path);
    if (there == (mode != offload::StorageFileMode::kReadOnly)) {
      throw InputError("file '" + path + (there ? "' exists already" : "' cannot be read"));
    }
    if (!there) {
      disk_->files[path] = Bytes(bytes);
      counters_.allocated_bytes += bytes;
      counters_.peak_allocated_bytes =
          std::max(counters_.peak_allocated_bytes, counters_.allocated_bytes);
    }
    paths_.push_back(path);
    return static_cast<offload::StorageFileId>(paths_.size() - 1);
  }
  std::uint64_t file_bytes(offload::StorageFileId file) const override {
    const std::lock_guard lock(disk_->mutex);
    return disk_->files.at(paths_.at(file)).size();
  }
  void close(offload::StorageFileId) override {}
  void register_memory(void*, std::uint64_t) override {}
  void filter_results(ResultFilter) override {}  // no system call is made

  void submit(const offload::StorageRequest& request, Callback done) override {
    const std::lock_guard lock(disk_->mutex);
    Pending pending{request, std::move(done), SIZE_MAX};
    if (request.op == offload::StorageOp::kWrite) {
      const auto* const data = static_cast<const std::byte*>(request.data);
      pending.op = disk_->ops.size();
      disk_->ops.push_back({false, paths_.at(request.file), request.offset,
                            Bytes(data, data + request.bytes), false, SIZE_MAX});
    }
    pending_.push_back(std::move(pending));
    changed_.notify_all();
  }
  void drain(Deadline) override {
    std::unique_lock lock(disk_->mutex);
    changed_.wait(lock, [this] { return pending_.empty() && !busy_; });
  }
  void flush(offload::StorageFileId file) override {
    const std::lock_guard lock(disk_->mutex);
    const std::string& path = paths_.at(file);
    const std::size_t at = disk_->ops.size();
    for (CrashDisk::Op& op : disk_->ops) {
      if (!op.flush && op.path == path && op.ended && op.covered == SIZE_MAX) op.covered = at;
    }
    disk_->ops.push_back({true, path, 0, {}, true, SIZE_MAX});
  }
  offload::StorageCounters counters() const override {
    const std::lock_guard lock(disk_->mutex);
    return counters_;
  }

 private:
  struct Pending {
    offload::StorageRequest request;
    Callback done;
    std::size_t op;  // of a write
  };

  void work(const std::stop_token& stop) {
    std::unique_lock lock(disk_->mutex);
    while (true) {
      changed_.wait(lock, [&] { return !pending_.empty() || stop.stop_requested(); });
      if (pending_.empty()) return;
      const auto at = static_cast<std::ptrdiff_t>(random_.below(draw_++, pending_.size()));
      Pending pending = std::move(pending_[static_cast<std::size_t>(at)]);
      pending_.erase(pending_.begin() + at);
      busy_ = true;
      const std::exception_ptr error = carry_out(pending);
      lock.unlock();
      pending.done(error);
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::exception_ptr carry_out(const Pending& pending) {
    const offload::StorageRequest& request = pending.request;
    Bytes& file = disk_->files.at(paths_.at(request.file));
    const bool write = request.op == offload::StorageOp::kWrite;
    if (request.offset > file.size() || request.bytes > file.size() - request.offset) {
      return std::make_exception_ptr(IoError(write ? "write" : "read", paths_.at(request.file),
                                             request.offset, request.bytes, 0));
    }
    if (write) {
      std::memcpy(file.data() + request.offset, request.data, request.bytes);
      disk_->ops[pending.op].ended = true;
      counters_.write_bytes += request.bytes;
      ++counters_.writes;
    } else {
      std::memcpy(request.data, file.data() + request.offset, request.bytes);
      counters_.read_bytes += request.bytes;
      ++counters_.reads;
    }
    return nullptr;
  }

  std::shared_ptr<CrashDisk> disk_;
  CounterRng random_;
  std::uint64_t draw_ = 0;
  std::vector<std::string> paths_;  // by id
  std::deque<Pending> pending_;
  bool busy_ = false;  // a callback runs
  offload::StorageCounters counters_;
  std::condition_variable changed_;
  std::jthread worker_;
};

}  // namespace sluice::testing
