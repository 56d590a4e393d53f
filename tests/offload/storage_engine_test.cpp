#include "offload/storage_engine.hpp"

#include "tests/contract/storage_contract.hpp"

namespace sluice::testing {
namespace {

struct IoUring {
  static std::unique_ptr<StorageEngine> make(const StorageOptions& options) {
    return make_storage_engine("io_uring", options);
  }
  static std::string unavailable_reason() { return io_uring_unavailable_reason(); }
};

struct Posix {
  static std::unique_ptr<StorageEngine> make(const StorageOptions& options) {
    return make_storage_engine("posix", options);
  }
  static std::string unavailable_reason() { return {}; }
};

struct FaultFree {  // the decorator with nothing planned is the engine itself
  static std::unique_ptr<StorageEngine> make(const StorageOptions& options) {
    return make_faulty_engine(make_storage_engine("posix", options), {});
  }
  static std::string unavailable_reason() { return {}; }
};

using Engines = ::testing::Types<IoUring, Posix, FaultFree>;
INSTANTIATE_TYPED_TEST_SUITE_P(Engines, StorageContract, Engines);

TEST(StorageFactory, AutoTakesIoUringWhereTheKernelHasIt) {
  const auto engine = make_storage_engine("auto", {});
  EXPECT_EQ(engine->name(), io_uring_unavailable_reason().empty() ? "io_uring" : "posix");
}

TEST(StorageFactory, AnUnknownKindIsRefused) {
  EXPECT_THROW(make_storage_engine("aio", {}), InputError);
}

}  // namespace
}  // namespace sluice::testing
