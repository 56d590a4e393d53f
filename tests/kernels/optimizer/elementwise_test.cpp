#include <bit>
#include <limits>

#include "base/error.hpp"
#include "tests/kernels/optimizer/rule_reference.hpp"
#include "tests/kernels/optimizer/update_state.hpp"

namespace sluice::kernels::host {
namespace {

std::vector<OptimizerOptions> all_rules() {
  std::vector<OptimizerOptions> rules(6);
  rules[0].rule = OptimizerRule::kAdamW;
  rules[1].rule = OptimizerRule::kAdam;
  for (int i = 2; i < 5; ++i) rules[static_cast<std::size_t>(i)].rule = OptimizerRule::kSgd;
  rules[2].momentum = 0;
  rules[4].nesterov = true;
  rules[5].rule = OptimizerRule::kLion;
  for (OptimizerOptions& rule : rules) rule.seed = 0x123456789abcdefull;
  return rules;
}

// A rule with every format of each array.
std::vector<UpdateFormats> formats_of(const OptimizerOptions& rule) {
  std::vector<UpdateFormats> all;
  struct Weight {
    DType dtype;
    bool split;
  };
  struct Grad {
    DType dtype, round_to;
  };
  for (const Weight weight : {Weight{DType::kF32, false},
                              {DType::kBF16, false},
                              {DType::kBF16, true},
                              {DType::kF16, false}}) {
    const DType half = weight.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
    for (const Grad grad :
         {Grad{half, DType::kF32}, {DType::kF32, DType::kF32}, {DType::kF32, half}}) {
      for (const DType moments : {DType::kF32, DType::kBF16, DType::kBlock8}) {
        UpdateFormats formats{rule, grad.dtype, grad.round_to};
        formats.options.weight = weight.dtype;
        formats.options.split_master = weight.split;
        formats.options.moments = moments;
        all.push_back(formats);
      }
    }
  }
  return all;
}

UpdateScalars scalars_of(std::int64_t step) {
  UpdateScalars scalars;
  scalars.lr = 3e-4f;
  scalars.grad_scale = 0.731f;
  scalars.step = step;
  return scalars;
}

UpdateState start_of(const UpdateFormats& formats, std::int64_t elems,
                     std::span<const ParameterSegment> segments, unsigned seed) {
  UpdateState state(formats, elems);
  const std::vector<float> w = normal_floats(elems, seed),
                           m = normal_floats(elems, seed + 1, 1e-3f);
  std::vector<float> m1(w.size()), m2(w.size());
  for (const ParameterSegment& segment : segments) {
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      state.set_number(i, w[at]);
      m1[at] = m[at];
      m2[at] = m[at] * m[at] * 0.5f;
    }
  }
  state.set_moment(1, m1, [](std::int64_t) { return std::uint16_t{0}; });
  state.set_moment(2, m2, [](std::int64_t) { return std::uint16_t{0}; });
  return state;
}

// The update element by element, through the scalar codecs.
void scalar_update(UpdateState& state, const UpdateFormats& formats, const DTypeArray& grad,
                   std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  std::vector<float> m = state.moment(1), v = state.moment(2);
  std::vector<std::uint64_t> keys(m.size());
  std::vector<bool> updated(m.size());
  for (const ParameterSegment& segment : segments) {
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      float g = grad[at];
      if (formats.round_grad_to == DType::kBF16) g = to_float(bf16_from_float(g));
      if (formats.round_grad_to == DType::kF16) g = to_float(f16_from_float(g));
      RuleNumbers x{m[at], v[at], state.number(i)};
      scalar_rule(formats.options, scalars, segment, g, x);
      m[at] = x.m;
      v[at] = x.v;
      state.set_number(i, x.w);
      keys[at] = segment.first_key + static_cast<std::uint64_t>(i - segment.begin);
      updated[at] = true;
    }
  }
  for (const int moment : {1, 2}) {
    state.set_moment(moment, moment == 1 ? m : v, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      if (!updated[at]) return std::uint16_t{0};  // a bf16 number stays
      return rounding_noise(formats.options.seed, scalars.step, keys[at], moment);
    });
  }
}

// Gaps (alignment padding), odd bounds, an empty segment, one over several pieces of 16,384, keys
// that are no multiples of anything and pass 2^36 (Philox counters beyond 32 bits).
constexpr std::int64_t kElems = 40960;
std::vector<ParameterSegment> segments_of(const UpdateFormats& formats) {
  const bool blocks = formats.options.moments == DType::kBlock8;
  return {{0, 1001, 0.1f, 1.0f, 5},
          {1024, 1024, 0.5f},
          {1152, 36001, 0.01f, 0.5f, (std::uint64_t{1} << 36) + 77},
          {blocks ? 36096 : 36001, 39999, 0.0f, 2.0f, 1000003}};
}

class Elementwise : public ::testing::TestWithParam<OptimizerOptions> {
 protected:
  template <class Body>
  void for_all_formats(const Body& body) {
    for (const UpdateFormats& formats : formats_of(GetParam())) {
      SCOPED_TRACE(format_name(formats));
      body(formats);
      if (HasFatalFailure()) return;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, Elementwise, ::testing::ValuesIn(all_rules()),
                         [](const auto& test) { return rule_name(test.param); });

TEST_P(Elementwise, IsTheDocumentedArithmeticToTheBit) {
  for_all_formats([&](const UpdateFormats& formats) {
    const std::vector<ParameterSegment> segments = segments_of(formats);
    const DTypeArray grad(formats.grad, normal_floats(kElems, 11, 1e-2f));
    UpdateState want = start_of(formats, kElems, segments, 12);
    for (const int step : {3, 4}) scalar_update(want, formats, grad, segments, scalars_of(step));
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      UpdateState state = start_of(formats, kElems, segments, 12);
      for (const int step : {3, 4}) {
        run_update(parallel, formats, state.buffers(grad), segments, scalars_of(step));
      }
      EXPECT_TRUE(state == want) << name;
    });
  });
}

// A chunk in parts of whole groups of 4,096, each with its own segments.
TEST_P(Elementwise, DoesNotSeeWhereAChunkIsCut) {
  for_all_formats([&](const UpdateFormats& formats) {
    const std::vector<ParameterSegment> segments = segments_of(formats);
    const DTypeArray grad(formats.grad, normal_floats(kElems, 31, 1e-2f));
    UpdateState whole = start_of(formats, kElems, segments, 32);
    run_update(Parallel(2), formats, whole.buffers(grad), segments, scalars_of(7));
    for (const std::int64_t part : {std::int64_t{4096}, std::int64_t{12288}}) {
      UpdateState cut = start_of(formats, kElems, segments, 32);
      for (std::int64_t begin = 0; begin < kElems; begin += part) {
        const std::int64_t end = std::min(begin + part, kElems);
        std::vector<ParameterSegment> here;
        for (ParameterSegment segment : segments) {
          const std::int64_t from = std::max(segment.begin, begin), to = std::min(segment.end, end);
          if (from >= to) continue;
          segment.first_key += static_cast<std::uint64_t>(from - segment.begin);
          segment.begin = from - begin;
          segment.end = to - begin;
          here.push_back(segment);
        }
        run_update(Parallel(1), formats, cut.buffers(grad, begin, end - begin), here,
                   scalars_of(7));
      }
      EXPECT_TRUE(cut == whole) << part;
    }
  });
}

// Zero, denormal, huge, infinite and NaN numbers in every array, to the bit except that one NaN is
// as good as another.
TEST_P(Elementwise, TreatsSpecialNumbersAsScalarCodeDoes) {
  for_all_formats([&](const UpdateFormats& formats) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> special = {0.0f,   -0.0f,    1e-45f,    -1e-40f,
                                        1e-30f, 1e20f,    -3e38f,    3.39e38f,
                                        1.0f,   infinity, -infinity, std::nanf("")};
    const std::size_t kinds = special.size();
    constexpr std::int64_t kSpecial = 4096;
    std::vector<float> grads, w, m;
    for (std::size_t i = 0; i < kSpecial; ++i) {
      // Blocks of 128 have infinities in different numbers, so that 8-bit moments are not all NaN.
      const std::size_t limit = i / 128 % 2 == 0 ? kinds : kinds - 3;
      grads.push_back(special[i % limit]);
      w.push_back(special[i / kinds % kinds]);
      m.push_back(special[(i + i / kinds) % limit]);
    }
    const DTypeArray grad(formats.grad, grads);
    const ParameterSegment all[] = {{0, kSpecial, 0.1f, 1.0f, 9}};
    const auto start = [&] {
      UpdateState state(formats, kSpecial);
      for (std::int64_t i = 0; i < kSpecial; ++i)
        state.set_number(i, w[static_cast<std::size_t>(i)]);
      for (const int moment : {1, 2}) {
        state.set_moment(moment, m, [](std::int64_t) { return std::uint16_t{0}; });
      }
      return state;
    };
    UpdateState want = start();
    scalar_update(want, formats, grad, all, scalars_of(1));
    const auto same = [](float a, float b) {
      return (std::isnan(a) && std::isnan(b)) ||
             std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    };
    const std::vector<float> want1 = want.moment(1), want2 = want.moment(2);
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      UpdateState state = start();
      run_update(parallel, formats, state.buffers(grad), all, scalars_of(1));
      const std::vector<float> m1 = state.moment(1), m2 = state.moment(2);
      for (std::int64_t i = 0; i < kSpecial; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_TRUE(same(state.number(i), want.number(i))) << name << " " << i;
        ASSERT_TRUE(same(state.weight(i), want.weight(i))) << name << " " << i;
        ASSERT_TRUE(same(m1[at], want1[at])) << name << " " << i;
        ASSERT_TRUE(same(m2[at], want2[at])) << name << " " << i;
      }
    });
  });
}

TEST_P(Elementwise, ChangesNothingWithoutSegments) {
  for_all_formats([&](const UpdateFormats& formats) {
    run_update(Parallel(2), formats, UpdateBuffers{.grad_dtype = formats.grad}, {}, scalars_of(1));
    const std::vector<ParameterSegment> segments = segments_of(formats);
    const DTypeArray grad(formats.grad, normal_floats(kElems, 61));
    UpdateState state = start_of(formats, kElems, segments, 62);
    const UpdateState before = state;
    run_update(Parallel(2), formats, state.buffers(grad), {}, scalars_of(1));
    EXPECT_TRUE(state == before);
  });
}

TEST_P(Elementwise, RefusesSegmentsOutOfOrderOrBounds) {
  for_all_formats([&](const UpdateFormats& formats) {
    const DTypeArray grad(formats.grad, normal_floats(4096, 71));
    UpdateState state = start_of(formats, 4096, std::vector<ParameterSegment>{{0, 4096}}, 72);
    const UpdateState before = state;
    std::vector<std::vector<ParameterSegment>> wrong = {
        {{0, 4097}}, {{-128, 5}}, {{128, 4}}, {{0, 150}, {128, 160}}, {{256, 260}, {0, 5}}};
    if (formats.options.moments == DType::kBlock8) wrong.push_back({{64, 4096}});
    for (const auto& segments : wrong) {
      EXPECT_THROW(run_update(Parallel(1), formats, state.buffers(grad), segments, scalars_of(1)),
                   InternalError);
    }
    EXPECT_TRUE(state == before);
  });
}

TEST(ElementwiseFormats, FormatsWithoutAKernelAreRefused) {
  const DTypeArray grad(DType::kF32, normal_floats(4096, 81));
  const ParameterSegment all[] = {{0, 4096}};
  const UpdateFormats right{{}, DType::kF32, DType::kF32};
  UpdateState state = start_of(right, 4096, all, 82);
  const UpdateState before = state;
  const auto refuses = [&](const UpdateFormats& formats, const UpdateBuffers& buffers) {
    EXPECT_THROW(run_update(Parallel(1), formats, buffers, all, scalars_of(1)), InternalError);
  };
  const UpdateBuffers buffers = state.buffers(grad);
  UpdateFormats wrong = right;
  wrong.options.moments = DType::kI32;
  refuses(wrong, buffers);
  wrong = right;
  wrong.options.weight = DType::kI32;
  refuses(wrong, buffers);
  wrong = right;
  wrong.options.weight = DType::kF32;
  wrong.options.split_master = true;  // nothing to split: the weight is the master
  refuses(wrong, buffers);
  UpdateBuffers bad = buffers;
  bad.grad_dtype = DType::kF64;
  refuses(right, bad);
  bad = buffers;
  bad.round_grad_to = DType::kI16;
  refuses(right, bad);
  bad = buffers;
  bad.master = nullptr;
  refuses(right, bad);
  bad = buffers;
  bad.moment2 = nullptr;
  refuses(right, bad);
  wrong = right;
  wrong.options.rule = OptimizerRule::kLion;  // which has no second moment
  refuses(wrong, buffers);
  wrong = right;
  wrong.options.moments = DType::kBlock8;
  bad = buffers;
  bad.elems = 4000;  // not of whole groups
  refuses(wrong, bad);
  EXPECT_TRUE(state == before);
}

}  // namespace
}  // namespace sluice::kernels::host
