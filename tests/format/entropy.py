"""The context-mixing coder of `docs/format.md`, with its range coder."""

M64 = (1 << 64) - 1


def h(a, b):
    m = ((a ^ (b * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93) & M64
    return m ^ (m >> 32)


# Functions


def _squash_table():
    e, g = 1 << 50, []
    for _ in range(2816):
        g.append(e * 65536 // (e + (1 << 50)))
        e = ((e >> 12) * 1130306554484061) >> 38
    return [min(max(65536 - g[-s] if s < 0 else g[s], 1), 65535) for s in range(-2815, 2816)]


SQUASH = _squash_table()


def squash(s):
    return SQUASH[min(max(s, -2815), 2815) + 2815]


def _stretch_table():
    table, s = [], -2815
    for p in range(4096):
        while s < 2815 and squash(s) < 16 * p + 8:
            s += 1
        table.append(min(max(s, -2047), 2047))
    return table


STRETCH = _stretch_table()
RATES = [131072 // (2 * n + 3) for n in range(1024)]


class Counter:
    """A probability of 22 bits and a count."""

    __slots__ = ("p22", "n")

    def __init__(self, p22=1 << 21, n=0):
        self.p22, self.n = p22, n

    def learn(self, bit, limit):
        target = (1 << 22) - 1 if bit else 0
        self.p22 += ((target - self.p22) * RATES[self.n]) >> 16
        self.n = min(self.n + 1, limit)


class Counters(dict):
    """Counters that are made when they are first asked for."""

    def __missing__(self, key):
        counter = self[key] = Counter()
        return counter


class Strengths(dict):
    def __missing__(self, key):
        counter = self[key] = Counter(3 << 20)
        return counter


class Mixer:
    def __init__(self, inputs, weight):
        self.weights, self.inputs, self.weight = {}, inputs, weight

    def mix(self, x, number):
        weights = self.weights.get(number)
        if weights is None:
            weights = self.weights[number] = [self.weight] * self.inputs
        self.current = weights
        total = 0
        for w, v in zip(weights, x):
            total += w * v
        self.stretch = s = min(max(total >> 13, -2815), 2815)
        return s

    def learn(self, x, bit):
        e = (((bit << 16) - squash(self.stretch)) * 24) >> 8
        weights = self.current
        for i, v in enumerate(x):
            if v:
                w = weights[i] + ((((v * e) >> 16) + 1) >> 1)
                weights[i] = -32768 if w < -32768 else 32767 if w > 32767 else w


class Correction:
    def __init__(self):
        self.rows = {}

    def correct(self, stretch, context):
        row = self.rows.get(context)
        if row is None:
            row = self.rows[context] = [squash(128 * (i - 16)) for i in range(33)]
        t = min(max(stretch, -2047), 2047) + 2048
        i, f = t >> 7, t & 127
        self.row, self.nearer = row, i + (f >= 64)
        return (row[i] * (128 - f) + row[i + 1] * f) >> 7

    def learn(self, bit):
        c = self.row[self.nearer]
        self.row[self.nearer] = c + ((65535 * bit - c) >> 6)


class RangeDecoder:
    """Reads bits and nibbles. What is given to be coded is not looked at."""

    decodes = True

    def __init__(self, stored):
        self.stored, self.at, self.range, self.code = stored, 0, (1 << 32) - 1, 0
        for _ in range(4):
            self.code = self.code << 8 | self._next()

    def _next(self):
        at = self.at
        self.at += 1
        return self.stored[at] if at < len(self.stored) else 0

    def _widen(self):
        while self.range < 1 << 24:
            self.range <<= 8
            self.code = (self.code << 8 | self._next()) & 0xFFFFFFFF

    def bit(self, _, p):
        b = (self.range >> 16) * p
        if self.code < b:
            bit, self.range = 1, b
        else:
            bit = 0
            self.code -= b
            self.range -= b
        if self.range < 1 << 24:
            self._widen()
        return bit

    def nibble(self, _, b):
        u = self.range >> 15
        v = self.code // u
        k = sum(1 for below in b[1:] if below <= v)
        start = u * b[k] if k else 0
        self.code -= start
        self.range = u * b[k + 1] - start if k < 15 else self.range - start
        self._widen()
        return k

    def choices(self, count):
        return [0] * count

    def end(self):
        if self.at > len(self.stored) + 4:
            raise ValueError(f"a part: expected {self.at - 4} stored bytes or more, found {len(self.stored)}")


class Learning:
    """Has a model learn what was decoded otherwise, with the choices that the encoder made."""

    decodes = False

    def __init__(self, choices):
        self.left = list(choices)

    def bit(self, given, _):
        return given

    def nibble(self, given, _):
        return given

    def choices(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        return taken + [0] * (count - len(taken))


STILL, DIFFERENCE, CONTINUED, DIRECT = 1, 2, 4, 8
NIBBLE_RATES = [29000, 21000, 16000, 12500, 10500, 9000, 7800, 6900, 6200, 5600, 5100, 4700, 4300, 3900, 3500, 3000]
BIT_RATES = [43690, 26214, 18724, 14563, 11915, 10082, 8738, 7710, 6898, 6241, 5698, 5242, 4854, 4519, 4228, 3971]
NEW_NIBBLES = [2048 * i for i in range(16)]
RUNS = [min(run, 3) if run < 4 else 4 if run < 7 else 5 if run < 13 else 6 if run < 31 else 7 for run in range(32)]
SEEN = [0, 1, 1] + [2] * 7 + [3] * 6


class Place:
    """Where a byte is: what its predictions depend on."""

    __slots__ = ("klass", "position", "key", "step", "counted", "early", "late")

    def __init__(self, klass, position, key, step, counted, early, late):
        self.klass, self.position, self.key, self.step = klass, position, key, step
        self.counted, self.early, self.late = counted, early, late


class Model:
    """What one effort, 0 to 2, has learned since the keyframe."""

    def __init__(self, effort):
        self.effort = effort
        self.C, self.K, self.N = ((3, 5, 8), (4, 8, 16), (7, 12, 32))[effort]
        self.pairs_mask = (1 << (16, 18, 19)[effort]) - 1
        self.lines_mask = (1 << (15, 17, 18)[effort]) - 1
        self.history_size = 1 << (23, 23, 24)[effort]
        self.matches_mask = (1 << (15, 15, 18)[effort]) - 1
        self.by_nibbles = effort == 0
        self.cells, self.recalled, self.matches = {}, {}, {}
        self.strengths, self.asked, self.flags, self.direct = Strengths(), Counters(), Counters(), Counters()
        self.refined, self.steps, self.shares = {}, {}, {}
        self.asking = Mixer(self.K + 3, 16384 // (self.K + 3))
        self.mixers = [Mixer(self.N, 4 * (8192 // self.N)) for _ in range(2)]
        self.corrections = [Correction(), Correction()]
        self.history, self.written, self.match_line = {}, 0, 0
        self.match_at = self.match_len = self.left = 0

    def decode(self, stored, klass, columns):
        """The bytes of each column of a part: `columns` has number, form and bytes of each."""
        coder = RangeDecoder(stored)
        decoded = [bytes(self._column(coder, klass, n, form, bytearray(size))) for n, form, size in columns]
        coder.end()
        return decoded

    def learn(self, klass, columns, contents, choices):
        """Codes, without writing, what was decoded otherwise: `columns` has number and form of each."""
        coder = Learning(choices)
        for (number, form), content in zip(columns, contents):
            self._column(coder, klass, number, form, bytearray(content))

    # Columns

    def _column(self, coder, klass, number, form, data):
        class_key = h(klass + 1, 0x51)
        column_key = h(class_key, number + 1)
        self.left, self.match_len = 0, 0
        if form == 0:
            self._symbols(coder, klass, class_key, column_key, data)
        elif form > 1 and self._is_rows(coder, column_key, form - 1, data):
            self._rows(coder, klass, class_key, column_key, form - 1, data)
        else:
            self._bytes(coder, klass, class_key, column_key, data)
        return data

    def _flag(self, coder, key, given):
        counter = self.flags[key & 0x3FFF]
        bit = coder.bit(given, min(max(counter.p22 >> 6, 32), 65503))
        counter.learn(bit, 30)
        return bit

    def _is_rows(self, coder, column_key, width, data):
        if len(data) % width:
            return False
        if width <= 256:
            return True
        if len(data) // width < 8:
            return False
        (given,) = coder.choices(1)
        return self._flag(coder, h(column_key, 0x52), given & 1) == 1

    def _modes(self, coder, column_key, width, rows):
        if rows < 8:
            return [0] * width
        modes = []
        for position, given in enumerate(coder.choices(width)):
            key, coded = h(column_key, position), 1
            for bit in (3, 2, 1, 0):
                coded = coded << 1 | self._flag(coder, h(key, coded), given >> bit & 1)
            modes.append(coded & 15)
        return modes

    def _rows(self, coder, klass, class_key, column_key, width, data):
        class_key = h(class_key, width)
        modes = self._modes(coder, column_key, width, len(data) // width)
        modes = [STILL if mode & STILL else mode for mode in modes]
        if not coder.decodes:
            to_differences(data, modes)
        moving = [position for position in range(width) if not modes[position] & STILL]
        still = [position for position in range(width) if modes[position] & STILL]
        for start in range(0, len(data), width):
            if start:
                for position in still:
                    data[start + position] = data[start + position - width]
            positions = moving if start else range(width)
            self._row(coder, klass, class_key, column_key, width, positions, modes, data, start)
        from_differences(data, modes)

    def _row(self, coder, klass, class_key, column_key, width, positions, modes, data, start):
        changes, prefix, last = 0, column_key, None
        recalled = self.K - 2
        for position in positions:
            at = start + position
            column = h(column_key, position)
            if modes[position] & DIRECT:
                data[at] = self._direct(coder, data[at], column & 0x3FF)
                self.left = (self.left << 8 | data[at]) & M64
                changes = changes << 8 & M64
                continue
            up = data[at - width] if at >= width else 0
            up2 = data[at - 2 * width] if at >= 2 * width else 0
            up3 = data[at - 3 * width] if at >= 3 * width else 0
            next_ = data[at + 1 - width] if position + 1 < width and start else 0
            straight = (2 * up - up2) & 0xFF
            left = self.left
            l1, L = left & 0xFF, left >> 8
            place = h(class_key, position)
            change, change2 = changes & 0xFF, changes >> 8 & 0xFF
            counted = [
                h(column, up),
                h(column, 1 << 32 | l1),
                h(class_key, 2 << 32 | left & 0xFFFF),
            ]
            if self.C > 3:
                counted.append(h(column, 3 << 32))
            if self.C > 4:
                counted += [
                    h(column, 4 << 32 | up << 8 | change),
                    h(class_key, 5 << 32 | left & 0xFFFFFF),
                    h(place, 6 << 32 | up),
                ]
            early = [
                h(prefix, position),
                h(column, 11 << 32 | up),
                h(column, 12 << 32 | up << 8 | up2),
            ]
            if recalled > 3:
                early += [
                    h(class_key, 13 << 60 & M64 | L & 0xFFFFFF),
                    h(column, 14 << 32 | L & 0xFF),
                    h(place, 15 << 32 | up << 8 | L & 0xFF),
                ]
            if recalled > 6:
                early += [
                    h(column, 16 << 32 | straight << 16 | change2),
                    h(column, 17 << 32 | up << 16 | up2 << 8 | up3),
                    h(class_key, 18 << 52 & M64 | L & 0xFFFFFFFFFF),
                    h(column, 19 << 32 | up << 8 | next_),
                ]
            late = (last or 0, l1, 0, l1, l1, l1, change, 0, l1, l1)
            step = straight if start >= 2 * width else None
            if last is not None:
                prefix = h(prefix, last)
            byte = self._byte(coder, data[at], Place(klass, position, column, step, counted, early, late))
            data[at] = last = byte
            changes = (changes << 8 | (byte - up) & 0xFF) & M64

    def _direct(self, coder, given, table):
        coded = 1
        for bit in range(7, -1, -1):
            counter = self.direct[table << 8 | coded]
            bit = coder.bit(given >> bit & 1, min(max(counter.p22 >> 6, 16), 65519))
            counter.learn(bit, 1000)
            coded = coded << 1 | bit
        return coded & 0xFF

    def _symbols(self, coder, klass, class_key, column_key, data):
        within, within_before, before = 0, 0, 0
        for at in range(len(data)):
            left, L = self.left, before
            column, place = h(column_key, within), h(class_key, within)
            l1 = left & 0xFF
            counted = [
                h(column, l1),
                h(column, 1 << 32),
                h(column, 2 << 32 | left & 0xFFFF),
                h(place, 3 << 32 | l1),
                h(column, 4 << 32 | left & 0xFF00),
                h(column, 5 << 32 | left & 0xFFFFFF),
                h(place, 6 << 32 | left & 0xFFFF),
            ][: self.C]
            column_before, place_before = h(column_key, within_before), h(class_key, within_before)
            early = [
                h(column_before, 11 << 32 | L & 0xFF),
                h(column_before, 12 << 32 | L & 0xFFFF),
                h(column_before, 13 << 60 & M64 | L & 0xFFFFFF),
                h(place_before, 14 << 60 & M64 | L & 0xFFFFFF),
                h(column_before, 15 << 52 & M64 | L & 0xFFFFFFFFFF),
                h(column_before, 16 << 32),
                h(column_before, 17 << 32 | L & 0xFFFF),
                h(column_before, 18 << 32 | L & 0xFF00),
                h(h(column_before, 19), L),
                h(column_before, 20 << 32 | L & 0xFFFFFF),
            ][: self.K - 2]
            high = left & 0x80
            late = (l1, l1, l1, l1, l1, l1, high, high, l1, high)
            byte = self._byte(coder, data[at], Place(klass, within, column, None, counted, early, late))
            data[at] = byte
            before, within_before = left, within
            within = min(within + 1, 7) if byte >= 0x80 else 0

    def _bytes(self, coder, klass, class_key, column_key, data):
        word = word_before = old_word = old_before = before = 0
        for at in range(len(data)):
            left, L = self.left, before
            l1 = left & 0xFF
            counted = [
                h(class_key, 1 << 32 | l1),
                h(class_key, 2 << 32 | left & 0xFFFF),
                h(class_key, 3 << 32 | left & 0xFFFFFF),
                h(class_key, 4 << 32),
                h(h(class_key, word), 5 << 32 | l1),
                h(class_key, 6 << 32 | left & 0xFF00),
                h(class_key, 7 << 60 & M64 | left & 0xFFFFFFFF),
            ][: self.C]
            early = [
                h(class_key, 11 << 60 & M64 | L & 0xFFFFFF),
                h(class_key, 12 << 52 & M64 | L & 0xFFFFFFFFFF),
                h(class_key, 13 << 32 | L & 0xFFFF),
                h(h(old_before, old_word), 14 << 32),
                h(class_key, 15 << 60 & M64 | L & 0xFFFFFFFF),
                h(column_key, 16 << 32 | L & 0xFF),
                h(class_key, 17 << 52 & M64 | L & 0xFF00FF),
                h(class_key, 18 << 52 & M64 | L & 0xFFFFFF),
                h(h(class_key, at & 3), L >> 16 & 0xFF | L >> 40 & 0xFF00),
                h(h(class_key, 20), L),
            ][: self.K - 2]
            late = (l1, l1, l1, l1, l1, l1, l1, 0, 0, l1)
            position = left >> 5 & 7
            byte = self._byte(coder, data[at], Place(klass, position, column_key, None, counted, early, late))
            data[at] = byte
            before, old_word, old_before = left, word, word_before
            if byte >= 0x80 or 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122:
                word = h(word, byte)
            elif word:
                word_before, word = word, 0

    # A byte

    def _byte(self, coder, given, place):
        entries = self._recall(place)
        byte = self._ask(coder, given, place)
        if byte is None:
            byte = self._nibbles(coder, given, place) if self.by_nibbles else self._bits(coder, given, place)
        if place.step is not None:
            at = place.key & 0x3FFF
            self.steps[at] = self.steps.get(at, 0) << 1 & 63 | (place.step == byte)
        for entry in entries:
            learn_entry(entry, byte)
        self._match(byte)
        return byte

    def _recall(self, place):
        """Finds the candidates; the entries of the recalled contexts."""
        K, recalled = self.K, self.recalled
        entries = []
        self.candidates, self.forms = candidates, forms = [None] * K, [0] * K
        for context, early in enumerate(place.early):
            q = h(early, place.late[context])
            at, check = (early & self.lines_mask) << 4 | q & 15, q >> 48
            one = recalled.get(at)
            if one is None:
                one = recalled[at] = [0, 0, 0, 0]
            other = recalled.get(at ^ 1)
            if other is None:
                other = recalled[at ^ 1] = [0, 0, 0, 0]
            if one[0] == check:
                entry = one
            elif other[0] == check:
                entry = other
            else:
                entry = other if other[3] < one[3] else one
                entry[:] = check, 0, 0, 0
                entries.append(entry)
                continue
            entries.append(entry)
            if entry[3]:
                candidates[context] = entry[1]
            forms[context] = RUNS[entry[3]] << 3 | entry[2]
        if self.match_len:
            candidates[K - 2] = self.history.get(self.match_at % self.history_size, 0)
            length = self.match_len
            forms[K - 2] = length if length < 32 else min(26 + length.bit_length(), 63)
        if place.step is not None:
            candidates[K - 1] = place.step
            forms[K - 1] = self.steps.get(place.key & 0x3FFF, 0)
        return entries

    def _ask(self, coder, given, place):
        candidates, forms, strengths = self.candidates, self.forms, self.strengths
        asked = [None] * self.K
        best, best_p = None, 0
        for k, candidate in enumerate(candidates):
            if candidate is not None:
                asked[k] = counter = strengths[k << 10 | forms[k] << 4 | 8]
                p = counter.p22 >> 6
                if p > best_p:
                    best, best_p = candidate, p
        if best is None:
            return None
        x, agree = [0] * (self.K + 3), 0
        for k, candidate in enumerate(candidates):
            if candidate is not None:
                stretch = STRETCH[asked[k].p22 >> 10]
                if candidate == best:
                    agree += 1
                    x[k] = stretch
                else:
                    x[k] = -max(stretch, 0)
        counters = [self.asked[h(place.key, 1) & 0xFFFF], self.asked[h(place.key, 258 + best) & 0xFFFF]]
        x[self.K] = STRETCH[counters[0].p22 >> 10]
        x[self.K + 1] = STRETCH[counters[1].p22 >> 10]
        x[self.K + 2] = 256
        s = self.asking.mix(x, 32 * agree + (best_p >> 11))
        hit = coder.bit(int(given == best), min(max(squash(s), 16), 65519))
        self.asking.learn(x, hit)
        for counter in counters:
            counter.learn(hit, 60)
        for k, candidate in enumerate(candidates):
            if candidate is None:
                continue
            if candidate == best:
                asked[k].learn(hit, 1000)
                if not hit:
                    candidates[k] = None
            elif hit:
                asked[k].learn(0, 1000)
        return best if hit else None

    def _find(self, place, coded):
        """The cells of the counted contexts for a nibble."""
        found = []
        for context in place.counted:
            q = h(context, coded)
            at, check = q & self.pairs_mask, q >> 52
            pair = self.cells.get(at)
            if pair is None:
                pair = self.cells[at] = [self._new_cell(), self._new_cell()]
            one, other = pair
            if one[0] == check:
                cell = one
            elif other[0] == check:
                cell = other
            else:
                cell = other if self._seen(other) < self._seen(one) else one
                cell[:] = self._new_cell()
                cell[0] = check
            found.append(cell)
        return found

    def _new_cell(self):
        """A check, how much was seen, and 15 numbers; or a check, nothing, and 15 counters."""
        return [0, 0, NEW_NIBBLES[:]] if self.by_nibbles else [0x800, 0, [0x8000] * 16]

    def _seen(self, cell):
        return cell[1] if self.by_nibbles else cell[2][1] & 15

    def _nibbles(self, coder, given, place):
        upper = self._nibble(coder, given >> 4, 0, place)
        return upper << 4 | self._nibble(coder, given & 15, 16 + upper, place)

    def _nibble(self, coder, given, coded, place):
        cells = self._find(place, coded)
        number = place.klass, coded > 0, *(SEEN[cell[1]] for cell in cells)
        shares = self.shares.get(number)
        if shares is None:
            shares = self.shares[number] = [21845] * self.C
        mixed = []
        for i in range(16):
            b = sum((cell[2][i] * share) >> 16 for cell, share in zip(cells, shares))
            mixed.append(b - (b >> 9) + 4 * i)
        mixed[0] = 0
        k = coder.nibble(given, mixed)
        said = [((cell[2][k + 1] if k < 15 else 32768) - (cell[2][k] if k else 0)) + 8 for cell in cells]
        j = (1 << 27) // (sum((f * share) >> 16 for f, share in zip(said, shares)) + 1)
        for i, f in enumerate(said):
            s = shares[i]
            s = s - (s >> 5) + ((s * min((f * j) >> 15, 65535)) >> 17)
            shares[i] = min(max(s, 400), 65135)
        shares[shares.index(max(shares))] += 65535 - sum(shares)
        for cell in cells:
            rate = NIBBLE_RATES[cell[1]]
            b = cell[2]
            for i in range(1, 16):
                b[i] += (((32767 if i > k else 0) - b[i]) * rate) >> 16
            cell[1] = min(cell[1] + 1, 15)
        return k

    def _bits(self, coder, given, place):
        coded = 1
        for bit in range(7, -1, -1):
            if bit == 7:
                cells = self._find(place, 0)
            elif bit == 3:
                cells = self._find(place, coded)
            node = coded if bit >= 4 else 1 << (3 - bit) | coded & ((1 << (3 - bit)) - 1)
            coded = coded << 1 | self._bit(coder, given >> bit & 1, coded, bit, node, cells, place)
        return coded & 0xFF

    def _bit(self, coder, given, coded, bit, node, cells, place):
        C, refined = self.C, self.refined
        x, second = [0] * self.N, []
        counters = [cell[2][node] for cell in cells]
        for context, counter in enumerate(counters):
            stretch, seen = STRETCH[counter >> 4], counter & 15
            x[context] = stretch
            i = (stretch + 2048) >> 6
            key = context << 10 | seen << 6 | i
            other = refined.get(key)
            if other is None:
                other = refined[key] = Counter(squash(64 * i - 2016) << 6, 20)
            second.append(other)
            if seen:
                x[C + context] = STRETCH[other.p22 >> 10]
        agree, judged = 0, []
        for k, byte in enumerate(self.candidates):
            if byte is not None and (0x100 | byte) >> (bit + 1) == coded:
                counter = self.strengths[k << 10 | self.forms[k] << 4 | bit]
                stretch = STRETCH[counter.p22 >> 10]
                is_one = byte >> bit & 1
                agree += 1 if is_one else -1
                x[2 * C + k] = stretch if is_one else -stretch
                judged.append((counter, is_one))
        if self.effort == 2:
            x[2 * C + self.K] = 256
        first, last = self.mixers
        s = first.mix(x, 256 * min(max(agree + 10, 0), 19) + coded)
        s = (s + last.mix(x, 64 * place.klass + min(place.position, 63))) >> 1
        p1 = self.corrections[0].correct(s, h(place.key, coded) & 0xFFFF)
        p2 = self.corrections[1].correct(s, h(self.left & 0xFF | place.klass << 8, coded) & 0xFFFF)
        p = (2 * squash(s) + p1 + p2) // 4
        value = coder.bit(given, min(max(p, 16), 65519))
        target = 4095 if value else 0
        for cell, counter, other in zip(cells, counters, second):
            other.learn(value, 255)
            p, seen = counter >> 4, counter & 15
            p += ((target - p) * BIT_RATES[seen] + 32768) >> 16
            cell[2][node] = p << 4 | min(seen + 1, 15)
        for counter, is_one in judged:
            counter.learn(int(is_one == value), 1000)
        first.learn(x, value)
        last.learn(x, value)
        for correction in self.corrections:
            correction.learn(value)
        return value

    def _match(self, byte):
        size = self.history_size
        history = self.history
        goes_on = self.match_len and history.get(self.match_at % size, 0) == byte
        history[self.written % size] = byte
        self.written += 1
        self.left = (self.left << 8 | byte) & M64
        c = h(byte, 0x77)
        place, check = self.match_line << 4 | c >> 8 & 15, c & 0xFF
        self.match_line = h(self.left & 0xFFFFFFFFFF, 0x77) & self.matches_mask
        if goes_on:
            self.match_len = min(self.match_len + 1, 65535)
            self.match_at += 1
        else:
            self.match_len = 0
            entry = self.matches.get(place, 0)
            d = (self.written - (entry >> 8)) & 0xFFFFFF
            if entry & 0xFF == check and 0 < d < size and d < self.written:
                start, equal = self.written - d, 0
                while equal < 31 and history.get((start - equal - 1) % size, 0) == history.get(
                    (self.written - equal - 1) % size, 0
                ):
                    equal += 1
                if equal >= 6:
                    self.match_at, self.match_len = start, equal
        self.matches[place] = (self.written & 0xFFFFFF) << 8 | check


def learn_entry(entry, byte):
    """What a context remembers: check, byte, misses, run."""
    _, old, misses, run = entry
    if run == 0:
        run = 1
    elif old == byte:
        run = min(run + 1, 31)
        if run % 4 == 0 and misses:
            misses -= 1
    else:
        run, misses = 1, min(misses + 2, 7)
    entry[1:] = byte, misses, run


def to_differences(data, modes):
    """Of each row but the first, the differences from the row above."""
    width = len(modes)
    if not any(mode & (DIFFERENCE | CONTINUED) for mode in modes):
        return
    for start in range(len(data) - width, 0, -width):
        borrow = 0
        for position, mode in enumerate(modes):
            if not mode & (DIFFERENCE | CONTINUED):
                borrow = 0
                continue
            difference = data[start + position] - data[start + position - width] - (borrow if mode & CONTINUED else 0)
            data[start + position] = difference & 0xFF
            borrow = int(difference < 0)


def from_differences(data, modes):
    width = len(modes)
    if not any(mode & (DIFFERENCE | CONTINUED) for mode in modes):
        return
    for start in range(width, len(data), width):
        carry = 0
        for position, mode in enumerate(modes):
            if not mode & (DIFFERENCE | CONTINUED):
                carry = 0
                continue
            total = data[start + position] + data[start + position - width] + (carry if mode & CONTINUED else 0)
            data[start + position] = total & 0xFF
            carry = total >> 8
