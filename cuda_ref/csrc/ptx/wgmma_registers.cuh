// The accumulators of a wgmma in inline assembly. A thread has n / 2 of a 64 x n result: they are the
// operands from %0 on, `d` in the code around; the inputs follow.
#pragma once

#define TCGEMM_NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TCGEMM_NUMBERS_24 \
  TCGEMM_NUMBERS_8 \
  ", %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TCGEMM_NUMBERS_28 TCGEMM_NUMBERS_24 ", %24, %25, %26, %27"
#define TCGEMM_NUMBERS_32 TCGEMM_NUMBERS_28 ", %28, %29, %30, %31"
#define TCGEMM_NUMBERS_40 TCGEMM_NUMBERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TCGEMM_NUMBERS_48 TCGEMM_NUMBERS_40 \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TCGEMM_NUMBERS_56 TCGEMM_NUMBERS_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TCGEMM_NUMBERS_64 TCGEMM_NUMBERS_56 \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TCGEMM_NUMBERS_72 TCGEMM_NUMBERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TCGEMM_NUMBERS_80 TCGEMM_NUMBERS_72 \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TCGEMM_NUMBERS_88 TCGEMM_NUMBERS_80 \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TCGEMM_NUMBERS_96 TCGEMM_NUMBERS_88 \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TCGEMM_NUMBERS_104 TCGEMM_NUMBERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TCGEMM_NUMBERS_112 TCGEMM_NUMBERS_104 \
  ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TCGEMM_NUMBERS_128 \
  TCGEMM_NUMBERS_112 \
  ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"

// CONSTRAINT: "+f" or "+r".
#define TCGEMM_FOUR(CONSTRAINT, i) \
  CONSTRAINT(d[i]), CONSTRAINT(d[i + 1]), CONSTRAINT(d[i + 2]), CONSTRAINT(d[i + 3])
#define TCGEMM_EIGHT(CONSTRAINT, i) TCGEMM_FOUR(CONSTRAINT, i), TCGEMM_FOUR(CONSTRAINT, i + 4)
#define TCGEMM_OPERANDS_8(C) TCGEMM_EIGHT(C, 0)
#define TCGEMM_OPERANDS_24(C) TCGEMM_OPERANDS_8(C), TCGEMM_EIGHT(C, 8), TCGEMM_EIGHT(C, 16)
#define TCGEMM_OPERANDS_28(C) TCGEMM_OPERANDS_24(C), TCGEMM_FOUR(C, 24)
#define TCGEMM_OPERANDS_32(C) TCGEMM_OPERANDS_24(C), TCGEMM_EIGHT(C, 24)
#define TCGEMM_OPERANDS_40(C) TCGEMM_OPERANDS_32(C), TCGEMM_EIGHT(C, 32)
#define TCGEMM_OPERANDS_48(C) TCGEMM_OPERANDS_40(C), TCGEMM_EIGHT(C, 40)
#define TCGEMM_OPERANDS_56(C) TCGEMM_OPERANDS_48(C), TCGEMM_EIGHT(C, 48)
#define TCGEMM_OPERANDS_64(C) TCGEMM_OPERANDS_56(C), TCGEMM_EIGHT(C, 56)
#define TCGEMM_OPERANDS_72(C) TCGEMM_OPERANDS_64(C), TCGEMM_EIGHT(C, 64)
#define TCGEMM_OPERANDS_80(C) TCGEMM_OPERANDS_72(C), TCGEMM_EIGHT(C, 72)
#define TCGEMM_OPERANDS_88(C) TCGEMM_OPERANDS_80(C), TCGEMM_EIGHT(C, 80)
#define TCGEMM_OPERANDS_96(C) TCGEMM_OPERANDS_88(C), TCGEMM_EIGHT(C, 88)
#define TCGEMM_OPERANDS_104(C) TCGEMM_OPERANDS_96(C), TCGEMM_EIGHT(C, 96)
#define TCGEMM_OPERANDS_112(C) TCGEMM_OPERANDS_104(C), TCGEMM_EIGHT(C, 104)
#define TCGEMM_OPERANDS_128(C) \
  TCGEMM_OPERANDS_112(C), TCGEMM_EIGHT(C, 112), TCGEMM_EIGHT(C, 120)

// INSTRUCTION: what follows wgmma.mma_async.sync.aligned; A, B, P: the inputs' numbers, of P the one
// that is 0 where D is overwritten, whatever the registers held; TAIL: what follows P.
#define TCGEMM_WGMMA(COUNT, INSTRUCTION, CONSTRAINT, A, B, P, TAIL, ...)                       \
  asm volatile(                                                                                \
      "{\n"                                                                                    \
      ".reg .pred p;\n"                                                                        \
      "setp.ne.b32 p, " P ", 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned." INSTRUCTION " {" TCGEMM_NUMBERS_##COUNT "}, " A ", " B   \
      ", p" TAIL ";\n"                                                                         \
      "}\n"                                                                                    \
      : TCGEMM_OPERANDS_##COUNT(CONSTRAINT)                                                    \
      : __VA_ARGS__)

#define TCGEMM_DESCRIPTORS "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate))
