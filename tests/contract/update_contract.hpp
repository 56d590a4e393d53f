// Updates by every rule, as every implementation of Kernels computes them: the documented
// arithmetic to the bit in every format, but for the products of muon's hidden matrices, which are
// held to fp64.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/update_chunk.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::testing {

template <class Backend>
class UpdateContract : public KernelsContract<Backend> {
 protected:
  static constexpr std::int64_t kElems = Backend::kSlow ? 8192 : 40960;

  // Chunks of every rule whose bits are documented, in every format.
  template <class Body>
  static void for_each_chunk(const Body& body) {
    for (const UpdateFormats& formats : sampled(elementwise_formats())) {
      SCOPED_TRACE(format_name(formats));
      UpdateChunk chunk(formats, kElems, elementwise_segments(formats, kElems));
      chunk.draw_moments(13);
      body(chunk);
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const OptimizerOptions& rule : tensor_rules()) {
      for (const UpdateFormats& formats : sampled(all_formats(rule))) {
        SCOPED_TRACE(format_name(formats));
        body(UpdateChunk(formats, documented_shapes(formats.options)));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  // Narrow states change no sums, and so need few tiles.
  static std::vector<TensorView> documented_shapes(const OptimizerOptions& options) {
    if (options.rule == OptimizerRule::kMuon) return {{33, 7}, {1, 50}, {13, 300}};  // none hidden
    std::vector<TensorView> shapes = odd_shapes();
    const bool narrow = options.split_master || options.moments != DType::kF32;
    if (narrow || (Backend::kSlow && options.rule == OptimizerRule::kSm3)) {
      shapes.insert(shapes.end(), {{70, 1100, true}, {1, 300, false}, {66, 65, true}});
    } else {
      for (const TensorView& shape : shapes_of_many_tiles()) shapes.push_back(shape);
    }
    return shapes;
  }

  // run(kernels) in every way; chunks have no other alignments.
  template <class Run>
  static void in_every_way(const Run& run) {
    Backend::for_each_variation([&](const Variation& at) {
      SCOPED_TRACE(at.name);
      if (at.offset == 0) run(at.kernels);
    });
  }
  // Steps with these gradients leave the documented numbers, everywhere.
  static void expect_documented(const UpdateChunk& start,
                                const std::vector<std::vector<float>>& gradients, bool nans) {
    std::vector<UpdateChunk> want;
    UpdateChunk documented = start;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      documented.set_grad(gradients[i]);
      documented.update_as_documented(scalars_of(static_cast<std::int64_t>(i) + 1));
      want.push_back(documented);
    }
    in_every_way([&](Kernels& kernels) {
      UpdateChunk chunk = start;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        chunk.set_grad(gradients[i]);
        chunk.template update<Backend>(kernels, scalars_of(static_cast<std::int64_t>(i) + 1));
        if (nans) {
          chunk.expect_same(want[i]);
        } else {
          EXPECT_TRUE(chunk == want[i]) << "step " << i + 1;
        }
      }
    });
  }
  void update(UpdateChunk& chunk, std::int64_t step = 1) {
    chunk.update<Backend>(this->kernels(), scalars_of(step));
  }
};
TYPED_TEST_SUITE_P(UpdateContract);

TYPED_TEST_P(UpdateContract, IsTheDocumentedArithmeticToTheBit) {
  this->for_each_chunk([&](const UpdateChunk& start) {
    std::vector<std::vector<float>> gradients;
    const unsigned steps = needs_whole_tensors(start.formats.options) ? 3 : 2;
    for (unsigned seed = 1; seed <= steps; ++seed) {  // adafactor's rate passes 1/2
      gradients.push_back(normal_floats(start.elems, seed, 1e-2f));
    }
    this->expect_documented(start, gradients, false);
  });
}

// Zero, denormal, huge, infinite and NaN numbers in every array of elementwise rules, and some in
// the gradients of whole tensors: to the bit except that one NaN is as good as another.
TYPED_TEST_P(UpdateContract, TreatsSpecialNumbersAsScalarCodeDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.0f,   -0.0f,     1e-45f, -1e-40f,    0x1p-126f, 0x1p-70f,
                                      1e-30f, 0x1p100f,  1e20f,  -0x1p127f,  -3e38f,    3.39e38f,
                                      1.0f,   kInfinity, -NAN,   -kInfinity, NAN};
  const std::size_t kinds = special.size();
  for (const UpdateFormats& formats : elementwise_formats()) {
    SCOPED_TRACE(format_name(formats));
    UpdateChunk chunk(formats, 4096, {{0, 4096, 0.1f, 1.0f, 9}});
    std::vector<float> grads, moments;
    for (std::size_t i = 0; i < 4096; ++i) {
      // Blocks of 128 have infinities in different numbers, so that 8-bit moments are not all
      // NaN.
      const std::size_t limit = i / 128 % 2 == 0 ? kinds : kinds - 4;
      grads.push_back(special[i % limit]);
      chunk.set_number(static_cast<std::int64_t>(i), special[i / kinds % kinds]);
      moments.push_back(special[(i + i / kinds) % limit]);
    }
    chunk.store_moments(moments, moments, 1);
    this->expect_documented(chunk, {grads, normal_floats(4096, 2, 1e-2f)}, true);
    if (this->HasFatalFailure()) return;
  }
  for (const OptimizerRule rule : {OptimizerRule::kAdafactor, OptimizerRule::kSm3}) {
    UpdateFormats formats{options_of(rule), DType::kF32, DType::kBF16};
    formats.options.split_master = true;
    SCOPED_TRACE(format_name(formats));
    const UpdateChunk chunk(formats, this->documented_shapes(formats.options));
    std::vector<float> grads = normal_floats(chunk.elems, 3, 1e-2f);
    for (std::size_t i = 0; i < grads.size(); i += 501) grads[i] = 0x1p-140f;
    // Each NaN stays in its element of sm3 and raises no accumulator.
    for (const ParameterSegment& segment : chunk.segments) {
      grads[static_cast<std::size_t>(segment.begin + 6)] = NAN;
    }
    for (std::size_t i = 200; i < grads.size(); i += 30011) grads[i] = kInfinity;
    for (std::size_t i = 300; i < grads.size(); i += 40009) grads[i] = 0x1p90f;
    this->expect_documented(chunk, {grads, normal_floats(chunk.elems, 4, 1e-2f)}, true);
  }
}

// More segments, each shorter than a warp's share, and more tensors than one launch's parameters
// hold.
TYPED_TEST_P(UpdateContract, TakesMoreSegmentsThanALaunchHolds) {
  std::vector<ParameterSegment> segments;
  std::vector<TensorView> shapes;
  for (std::int64_t i = 0; i < 200; ++i) {
    segments.push_back({i * 40 + i % 3, i * 40 + 37, 0.01f * static_cast<float>(i % 5), 1.0f,
                        static_cast<std::uint64_t>(i * 1001)});
    shapes.push_back({i % 4 + 1, i % 7 + 1, false});
  }
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    for (const OptimizerOptions& rule : elementwise_rules()) {
      UpdateFormats formats{rule, DType::kBF16, DType::kF32};
      formats.options.split_master = true;
      formats.options.moments = moments;
      const UpdateChunk chunk(formats, 8192, segments);
      this->expect_documented(chunk, {normal_floats(8192, 4, 1e-2f)}, false);
    }
  }
  for (const OptimizerOptions& rule : tensor_rules()) {
    const UpdateChunk chunk({rule, DType::kBF16, DType::kF32}, shapes);
    this->expect_documented(chunk, {normal_floats(chunk.elems, 5, 1e-2f)}, false);
  }
}

// Parts of rows are rounded as rows of their own are that have the keys of the whole tensor.
TYPED_TEST_P(UpdateContract, RoundsSomeColumnsByTheKeysOfTheWholeTensor) {
  struct Part {
    std::int64_t rows, cols, whole_cols;
    std::uint64_t first_key;
  };
  std::vector<ParameterSegment> parts, rows;
  std::int64_t at = 0;
  for (const Part& of : {Part{40, 3, 7, 2},
                         {9, 128, 384, 256},
                         {3, 1000, 1001, 77},
                         {2, 600, 900, (std::uint64_t{1} << 36) - 700},
                         {64, 1, 2, 131}}) {
    ParameterSegment part{at, at + of.rows * of.cols, 0.1f, 1.0f, of.first_key};
    part.runs = {of.cols, of.whole_cols - of.cols, 0};
    parts.push_back(part);
    for (std::int64_t row = 0; row < of.rows; ++row, at += of.cols) {
      rows.push_back({at, at + of.cols, 0.1f, 1.0f,
                      of.first_key + static_cast<std::uint64_t>(row * of.whole_cols)});
    }
    at += 5;
  }
  for (const OptimizerOptions& rule : elementwise_rules()) {
    for (const bool split : {false, true}) {
      UpdateFormats formats{rule, DType::kBF16, DType::kF32};
      formats.options.split_master = split;
      formats.options.moments = DType::kBF16;
      SCOPED_TRACE(format_name(formats));
      UpdateChunk start(formats, 8192, rows);
      start.draw_moments(7);
      start.draw_grad(8);
      UpdateChunk want = start;
      want.update_as_documented(scalars_of(2));
      this->in_every_way([&](Kernels& kernels) {
        UpdateChunk chunk = start, cut = start;
        chunk.template update<TypeParam>(kernels, scalars_of(2), parts);
        EXPECT_TRUE(chunk == want);
        cut.segments = parts;
        cut.template update_part<TypeParam>(kernels, scalars_of(2), 0, 4096);
        cut.template update_part<TypeParam>(kernels, scalars_of(2), 4096, 8192);
        EXPECT_TRUE(cut == want) << "in two parts";
      });
    }
  }
}

// A chunk in parts of whole groups of 4,096, each with its own segments.
TYPED_TEST_P(UpdateContract, DoesNotSeeWhereAChunkIsCut) {
  for (const UpdateFormats& formats : elementwise_formats()) {
    SCOPED_TRACE(format_name(formats));
    UpdateChunk whole(formats, this->kElems, elementwise_segments(formats, this->kElems));
    whole.draw_moments(33);
    whole.draw_grad(31);
    std::vector<UpdateChunk> cuts(2, whole);
    this->update(whole, 7);
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const std::int64_t part = i == 0 ? 4096 : 12288;
      for (std::int64_t begin = 0; begin < this->kElems; begin += part) {
        cuts[i].template update_part<TypeParam>(this->kernels(), scalars_of(7), begin,
                                                std::min(begin + part, this->kElems));
      }
      EXPECT_TRUE(cuts[i] == whole) << part;
    }
  }
}

TYPED_TEST_P(UpdateContract, ChangesNothingWithoutSegments) {
  this->for_each_chunk([&](UpdateChunk chunk) {
    const UpdateFormats& formats = chunk.formats;
    const UpdateBuffers none{.grad_dtype = formats.grad, .round_grad_to = formats.round_grad_to};
    this->kernels().update(formats.options, none, {}, scalars_of(1), nullptr);
    const UpdateChunk before = chunk;
    chunk.template update<TypeParam>(this->kernels(), scalars_of(1), {});
    EXPECT_TRUE(chunk == before);
  });
}

TYPED_TEST_P(UpdateContract, RefusesSegmentsOutOfOrderOrBounds) {
  for (const UpdateFormats& formats : elementwise_formats()) {
    UpdateChunk chunk(formats, 4096, {{0, 4096}});
    const UpdateChunk before = chunk;
    std::vector<std::vector<ParameterSegment>> wrong = {
        {{0, 4097}}, {{-128, 5}}, {{128, 4}}, {{0, 150}, {128, 160}}, {{256, 260}, {0, 5}}};
    if (formats.options.moments == DType::kBlock8) wrong.push_back({{64, 4096}});
    for (const auto& segments : wrong) {
      EXPECT_THROW(chunk.template update<TypeParam>(this->kernels(), scalars_of(1), segments),
                   InternalError);
    }
    EXPECT_TRUE(chunk == before);
  }
}

// Formats without a kernel, states that the rule does not have, and parts of tensors.
TYPED_TEST_P(UpdateContract, RefusesFormatsWithoutAKernelAndPartsOfTensors) {
  using Change = std::function<void(OptimizerOptions&, UpdateBuffers&, ParameterSegment&)>;
  const auto refuses = [&](UpdateChunk chunk, const std::vector<Change>& changes) {
    const UpdateChunk before = chunk;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      OptimizerOptions options = chunk.formats.options;
      UpdateBuffers buffers = chunk.buffers();
      std::vector<ParameterSegment> segments = chunk.segments;
      changes[i](options, buffers, segments[0]);
      EXPECT_THROW(this->kernels().update(options, buffers, segments, scalars_of(1), nullptr),
                   InternalError)
          << rule_name(options) << " " << i;
    }
    EXPECT_TRUE(chunk == before);
  };
  const UpdateFormats adamw{options_of(OptimizerRule::kAdamW), DType::kF32, DType::kF32};
  refuses(UpdateChunk(adamw, 4096, {{0, 4096}}),
          {[](auto& options, auto&, auto&) { options.moments = DType::kI32; },
           [](auto& options, auto&, auto&) { options.weight = DType::kI32; },
           [](auto& options, auto&, auto&) {
             options.weight = DType::kF32;
             options.split_master = true;  // nothing to split: the weight is the master
           },
           [](auto& options, auto&, auto&) { options.rule = OptimizerRule::kLion; },
           [](auto& options, auto& buffers, auto&) {
             options.moments = DType::kBlock8;
             buffers.elems = 4000;  // not of whole groups
           },
           [](auto&, auto& buffers, auto&) { buffers.grad_dtype = DType::kF64; },
           [](auto&, auto& buffers, auto&) { buffers.round_grad_to = DType::kI16; },
           [](auto&, auto&, auto& segment) {
             segment.runs = {8, 8, 8};
           },
           [](auto&, auto& buffers, auto&) { buffers.master = nullptr; },
           [](auto&, auto& buffers, auto&) { buffers.moment2 = nullptr; }});
  for (const OptimizerOptions& rule : tensor_rules()) {
    const UpdateChunk chunk(fp32_formats(rule), {{33, 7, true}, {1, 50, false}});
    refuses(chunk, {[](auto&, auto&, auto& segment) { --segment.end; },
                    [](auto&, auto&, auto& segment) { segment.end -= 7; },
                    [](auto&, auto&, auto& segment) { ++segment.begin; },
                    [](auto&, auto&, auto& segment) { segment.tensor = {}; },
                    [](auto&, auto&, auto& segment) {
                      segment.runs = {7, 7, 0};
                    },
                    [](auto&, auto&, auto& segment) { segment.tensor.rows = -33; },
                    [](auto&, auto&, auto& segment) {
                      segment.tensor.rows = segment.tensor.cols = std::int64_t{1} << 32;
                      segment.end = segment.begin;
                    }});
    std::vector<ParameterSegment> part{chunk.segments[0]};
    --part[0].end;
    EXPECT_THROW(this->kernels().update_workspace_bytes(rule, part), InternalError);
  }
}

TYPED_TEST_P(UpdateContract, OnlyDecaysTensorsWhereAllGradientsAreZero) {
  for (const OptimizerOptions& rule : tensor_rules()) {
    UpdateChunk chunk(fp32_formats(rule), {{33, 7, true}, {1, 300}, {40, 30}, {5, 1, true}});
    UpdateChunk want = chunk;
    this->update(chunk);
    for (const ParameterSegment& segment : want.segments) {
      const float decay = scalars_of(1).lr * segment.lr_scale * segment.weight_decay;
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        want.set_number(i, want.number(i) - decay * want.number(i));
      }
    }
    EXPECT_TRUE(chunk == want) << rule_name(rule);
  }
}

// Any thread count, instruction set, and company in the call.
TYPED_TEST_P(UpdateContract, TensorsGetTheSameBitsInAnyWayAndCompany) {
  const std::vector<TensorView> shapes = TypeParam::kSlow ? odd_shapes() : shapes_of_many_tiles();
  for (const OptimizerOptions& rule : tensor_rules()) {
    for (UpdateFormats formats :
         {UpdateFormats{rule, DType::kBF16, DType::kF32},
          UpdateFormats{rule, DType::kF32, DType::kBF16}, fp32_formats(rule)}) {
      const UpdateChunk start(formats, shapes, 11);
      const auto after_steps = [&](Kernels& kernels, bool alone) {
        UpdateChunk chunk = start;
        for (int step = 1; step <= 3; ++step) {
          chunk.draw_grad(static_cast<unsigned>(100 + step));
          for (std::size_t i = 0; i < (alone ? chunk.segments.size() : 1); ++i) {
            const std::span<const ParameterSegment> all = chunk.segments;
            chunk.template update<TypeParam>(kernels, scalars_of(step),
                                             alone ? all.subspan(i, 1) : all);
          }
        }
        return chunk;
      };
      const UpdateChunk want = after_steps(this->kernels(), true);
      EXPECT_FALSE(want == start);
      this->in_every_way([&](Kernels& kernels) {
        EXPECT_TRUE(after_steps(kernels, false) == want) << format_name(formats);
      });
    }
  }
}

TYPED_TEST_P(UpdateContract, NotFiniteGradientsLeaveOtherTensorsAlone) {
  for (const OptimizerOptions& rule : tensor_rules()) {
    const UpdateChunk start(fp32_formats(rule), odd_shapes(), 24);
    UpdateChunk good = start;
    good.draw_grad(25);
    this->update(good);
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      const ParameterSegment& hit = start.segments[1];
      std::vector<float> grads = normal_floats(start.elems, 25, 1e-2f);
      grads[static_cast<std::size_t>(hit.begin + 10)] = bad;
      this->in_every_way([&](Kernels& kernels) {
        UpdateChunk chunk = start;
        chunk.set_grad(grads);
        chunk.template update<TypeParam>(kernels, scalars_of(1));
        EXPECT_FALSE(std::isfinite(chunk.number(hit.begin + 10))) << rule_name(rule);
        for (std::int64_t i = 0; i < chunk.elems; ++i) {
          if (i >= hit.begin && i < hit.end) continue;
          ASSERT_EQ(chunk.number(i), good.number(i)) << rule_name(rule);
        }
      });
    }
  }
}

inline std::vector<TensorView> muon_shapes() {
  std::vector<TensorView> shapes = odd_shapes();
  shapes.insert(shapes.end(), {{64, 64, true}, {1, 40, true}, {40, 40, true}, {33, 70, true}});
  return shapes;
}

// Every step's update, seen alone: parameters are zero before it. Five iterations make rounding
// errors of 2^-24 grow 3.4445^5 times at most, in the directions that the update hardly has. The
// momentum is the documented one to the bit.
TYPED_TEST_P(UpdateContract, EachStepsDirectionOfMuonIsFp64s) {
  const OptimizerOptions rule = options_of(OptimizerRule::kMuon);
  const auto mu = static_cast<float>(rule.momentum), rest = static_cast<float>(1 - rule.momentum);
  for (const UpdateFormats& formats :
       {UpdateFormats{rule, DType::kBF16, DType::kF32},
        UpdateFormats{rule, DType::kF32, DType::kBF16}, fp32_formats(rule)}) {
    UpdateChunk chunk(formats, muon_shapes(), 41);
    const auto elems = static_cast<std::size_t>(chunk.elems);
    std::vector<double> m(elems), v(chunk.moment(2).size());
    std::vector<float> momentum(elems);
    for (int step = 1; step <= (TypeParam::kSlow ? 4 : 20); ++step) {
      chunk.draw_grad(static_cast<unsigned>(step));
      for (const ParameterSegment& segment : chunk.segments) {
        for (std::int64_t i = segment.begin; i < segment.end; ++i) chunk.set_number(i, 0);
      }
      const UpdateChunk before = chunk;
      const UpdateScalars scalars = scalars_of(step);
      this->update(chunk, step);
      const std::vector<float> moments = chunk.moment(1);
      for (const ParameterSegment& segment : chunk.segments) {
        DoublePrecision t = before.tensor(segment, scalars.grad_scale, m, v);
        step_in_fp64(rule, scalars, t);
        std::copy(t.m.begin(), t.m.end(), m.begin() + segment.begin);
        std::copy(t.v.begin(), t.v.end(),
                  v.begin() + static_cast<std::ptrdiff_t>(segment.moment2_begin));
        double apart = 0, size = 0;
        for (std::size_t i = 0; i < t.w.size(); ++i) {
          const std::int64_t at = segment.begin + static_cast<std::int64_t>(i);
          apart += std::pow(static_cast<double>(chunk.number(at)) - t.w[i], 2);
          size += t.w[i] * t.w[i];
          if (!segment.tensor.hidden_matrix) continue;
          float& want = momentum[static_cast<std::size_t>(at)];
          want = mu * want + rest * (before.grad_at(at) * scalars.grad_scale);
          ASSERT_EQ(moments[static_cast<std::size_t>(at)], want);
        }
        EXPECT_LT(std::sqrt(apart / size), 5e-6) << step << " " << t.rows() << " x " << t.cols();
      }
    }
  }
}

// A step on a split master and narrow moments is the fp32 step between two conversions.
TYPED_TEST_P(UpdateContract, MuonsStatesOfEveryFormatTakeTheStepsOfFp32) {
  for (const DType moments : {DType::kBF16, DType::kBlock8}) {
    const UpdateFormats wide_formats{options_of(OptimizerRule::kMuon), DType::kBF16, DType::kF32};
    UpdateFormats formats = wide_formats;
    formats.options.split_master = true;
    formats.options.moments = moments;
    UpdateChunk wide(wide_formats, {{130, 33, true}, {1, 2300}, {3, 5, true}}, 6);
    UpdateChunk narrow(formats, {{130, 33, true}, {1, 2300}, {3, 5, true}}, 6);
    for (int step = 1; step <= 3; ++step) {
      wide.draw_grad(static_cast<unsigned>(step));
      narrow.grad = wide.grad;
      wide.store_moments(narrow.moment(1), wide.moment(2), step);
      UpdateChunk want = narrow;
      this->update(wide, step);
      this->update(narrow, step);
      want.store_moments(wide.moment(1), wide.moment(2), step);
      for (std::int64_t i = 0; i < wide.elems; ++i) want.set_number(i, wide.number(i));
      EXPECT_TRUE(narrow == want) << step;
      EXPECT_TRUE(narrow.weights() == wide.weights()) << step;
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(
    UpdateContract, IsTheDocumentedArithmeticToTheBit, TreatsSpecialNumbersAsScalarCodeDoes,
    TakesMoreSegmentsThanALaunchHolds, RoundsSomeColumnsByTheKeysOfTheWholeTensor,
    DoesNotSeeWhereAChunkIsCut, ChangesNothingWithoutSegments, RefusesSegmentsOutOfOrderOrBounds,
    RefusesFormatsWithoutAKernelAndPartsOfTensors, OnlyDecaysTensorsWhereAllGradientsAreZero,
    TensorsGetTheSameBitsInAnyWayAndCompany, NotFiniteGradientsLeaveOtherTensorsAlone,
    EachStepsDirectionOfMuonIsFp64s, MuonsStatesOfEveryFormatTakeTheStepsOfFp32);

}  // namespace sluice::testing
