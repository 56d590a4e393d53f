// The cutting of requests, and transfers driven with made-up results: short, interrupted, at the
// end of a file.
#include "offload/aligned_transfer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "tests/contract/storage_contract.hpp"

namespace sluice::offload {
namespace {

using testing::AlignedBytes;
using enum StorageOp;

using State = PieceTransfer::State;

// A file in memory that moves fewer bytes than asked for, and checks the demands of direct I/O.
class MoodyFile {
 public:
  MoodyFile(std::uint64_t bytes, DirectAlignment alignment, std::uint64_t seed)
      : content(bytes), alignment_(alignment), random_(seed) {}

  std::int64_t serve(const PieceTransfer::Call& call) {
    EXPECT_EQ(call.offset % alignment_.offset_bytes, 0u);
    EXPECT_EQ(call.bytes % alignment_.offset_bytes, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(call.data) % alignment_.memory_bytes, 0u);
    EXPECT_GT(call.bytes, 0u);
    if (random_() % 8 == 0) return random_() % 2 == 0 ? -EINTR : -EAGAIN;
    std::uint64_t bytes = call.bytes;
    if (random_() % 3 == 0) bytes = 1 + random_() % bytes;
    if (call.op == kWrite) {
      if (content.size() < call.offset + bytes) content.resize(call.offset + bytes);
      std::memcpy(content.data() + call.offset, call.data, bytes);
      return static_cast<std::int64_t>(bytes);
    }
    if (call.offset >= content.size()) return 0;
    bytes = std::min<std::uint64_t>(bytes, content.size() - call.offset);
    std::memcpy(call.data, content.data() + call.offset, bytes);
    return static_cast<std::int64_t>(bytes);
  }

  std::vector<std::byte> content;

 private:
  DirectAlignment alignment_;
  std::mt19937_64 random_;
};

void carry(MoodyFile& file, const StorageRequest& request, DirectAlignment alignment) {
  AlignedBytes bounce(kBounceBytes);
  PieceCursor cursor(request, alignment, 16 * kKiB);
  std::uint64_t at = request.offset;
  while (!cursor.done()) {
    const Piece piece = cursor.peek();
    cursor.pop();
    ASSERT_EQ(piece.offset, at);
    ASSERT_GT(piece.bytes, 0u);
    at += piece.bytes;
    PieceTransfer transfer(piece, request.op, alignment, bounce.at());
    State state = State::kContinue;
    for (int i = 0; state == State::kContinue; ++i) {
      ASSERT_LT(i, 10000);
      state = transfer.advance(file.serve(transfer.call()));
    }
    ASSERT_EQ(state, State::kDone);
  }
  ASSERT_EQ(at, request.offset + request.bytes);
}

TEST(AlignedTransfer, MovesExactlyTheCallersBytesWhateverTheKernelDoes) {
  std::mt19937_64 random(11);
  for (const DirectAlignment alignment :
       {DirectAlignment{1, 1}, DirectAlignment{512, 512}, DirectAlignment{4, 4096}}) {
    const std::uint64_t size = 100'001;
    MoodyFile file(size, alignment, random());
    std::vector<std::byte> model(size);
    AlignedBytes buffer(size);
    buffer.fill(random());
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t bytes = 1 + random() % (random() % 2 == 0 ? 60'000 : 3000);
      const std::uint64_t offset = random() % (size - bytes + 1);
      std::byte* data = buffer.at(random() % (size - bytes + 1));
      if (random() % 2 == 0) {
        carry(file, {kWrite, 0, offset, data, bytes}, alignment);
        std::memcpy(model.data() + offset, data, bytes);
      } else {
        carry(file, {kRead, 0, offset, data, bytes}, alignment);
        ASSERT_EQ(std::memcmp(data, model.data() + offset, bytes), 0) << i;
      }
      if (HasFatalFailure()) return;
      ASSERT_EQ(std::memcmp(file.content.data(), model.data(), size), 0) << i;
    }
  }
}

TEST(AlignedTransfer, AWholeAlignedRequestIsDirect) {
  AlignedBytes data(1 * kMiB);
  PieceCursor cursor({kRead, 0, 4096, data.at(), 40960}, {512, 512}, 16 * kKiB);
  EXPECT_TRUE(cursor.aligned());
  std::vector<std::uint64_t> sizes;
  for (; !cursor.done(); cursor.pop()) {
    EXPECT_EQ(cursor.peek().kind, Piece::Kind::kDirect);
    sizes.push_back(cursor.peek().bytes);
  }
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{16384, 16384, 8192}));
}

TEST(AlignedTransfer, AnAddressThatOnlyTheMiddleSharesIsDirectThere) {
  AlignedBytes data(16 * kKiB);
  PieceCursor cursor({kWrite, 0, 100, data.at(100), 8192}, {512, 512}, 16 * kKiB);
  EXPECT_FALSE(cursor.aligned());
  std::vector<Piece::Kind> kinds;
  for (; !cursor.done(); cursor.pop()) kinds.push_back(cursor.peek().kind);
  EXPECT_EQ(kinds, (std::vector<Piece::Kind>{Piece::Kind::kEdge, Piece::Kind::kDirect,
                                             Piece::Kind::kEdge}));
}

TEST(AlignedTransfer, ABlockBeyondTheEndIsWrittenAsZerosAroundTheBytes) {
  const DirectAlignment alignment{512, 512};
  MoodyFile file(700, alignment, 8);
  AlignedBytes data(10);
  data.fill(1);
  AlignedBytes bounce(kBounceBytes);
  std::memset(bounce.at(), 0xff, 512);  // bytes of an earlier transfer
  const Piece piece = PieceCursor({kWrite, 0, 800, data.at(), 10}, alignment, 4096).peek();
  PieceTransfer transfer(piece, kWrite, alignment, bounce.at());
  while (transfer.advance(file.serve(transfer.call())) == State::kContinue) continue;
  ASSERT_EQ(file.content.size(), 1024u);
  for (std::uint64_t i = 0; i < 1024; ++i) {
    const bool inside = i >= 800 && i < 810;
    ASSERT_EQ(file.content[i], inside ? data.at(i - 800)[0] : std::byte{0}) << i;
  }
}

TEST(AlignedTransfer, AnErrorEndsItAndKeepsTheErrno) {
  AlignedBytes data(4096);
  PieceCursor cursor({kWrite, 0, 0, data.at(), 4096}, {512, 512}, 4096);
  PieceTransfer transfer(cursor.peek(), kWrite, {512, 512}, nullptr);
  EXPECT_EQ(transfer.advance(512), State::kContinue);
  EXPECT_EQ(transfer.resubmitted(), 1u);
  EXPECT_EQ(transfer.call().offset, 512u);
  EXPECT_EQ(transfer.advance(-ENOSPC), State::kFailed);
  EXPECT_EQ(transfer.error(), ENOSPC);
}

TEST(AlignedTransfer, NeitherEagainNorTinyProgressGoesOnForEver) {
  AlignedBytes data(4096);
  const Piece piece = PieceCursor({kWrite, 0, 0, data.at(), 4096}, {512, 512}, 4096).peek();
  for (const std::int64_t result :
       {std::int64_t{-EAGAIN}, std::int64_t{-EINTR}, std::int64_t{100}, std::int64_t{0}}) {
    PieceTransfer transfer(piece, kWrite, {512, 512}, nullptr);
    State state = State::kContinue;
    int calls = 0;
    for (; state == State::kContinue && calls < 5000; ++calls) state = transfer.advance(result);
    EXPECT_EQ(state, State::kFailed) << result;
    EXPECT_EQ(transfer.error(), result < 0 ? static_cast<int>(-result) : 0);
  }
}

TEST(StorageFileTest, GoesOnThroughThePageCacheWhenDirectIoIsRefused) {
  const testing::TempDirectory directory;
  StorageFile file(directory.file("data"), StorageFileMode::kScratch, 8192);
  if (!file.direct()) GTEST_SKIP() << "no direct I/O here";
  file.stop_direct();
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(::fcntl(file.descriptor(), F_GETFL) & O_DIRECT, 0);
  char byte = 'x';
  EXPECT_EQ(::pwrite(file.descriptor(), &byte, 1, 8191), 1);
  file.sync();
  file.close();
}

}  // namespace
}  // namespace sluice::offload
